"""Errors of signal handlers, which may be functions, methods, partial functions or objects."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gpugauge.hook.counts.handlers import raised_by_handler


def raising(*_: object) -> None:
    raise ValueError("of the handler")


class Handler:
    def method(self, *_: object) -> None:
        raising()

    def __call__(self, *_: object) -> None:
        raising()


@pytest.mark.parametrize("handler", [raising, Handler().method, Handler(), functools.partial(raising, 1)])
def test_an_error_of_a_handler_is_known(handler: Callable[..., Any]) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except ValueError as error:
        found = raised_by_handler(error)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert found


def test_other_errors_are_not_of_a_handler() -> None:
    with pytest.raises(ValueError, match="of the handler") as caught:
        raising()

    assert not raised_by_handler(caught.value)
    assert not raised_by_handler(None)
