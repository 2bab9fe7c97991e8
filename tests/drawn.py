"""Cases that a seed draws, all in one test."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

EVERYTHING = bool(os.environ.get("GPUGAUGE_EVERYTHING"))
"""Whether all cases are drawn: `make everything`."""
SECONDS = 120
"""The longest time of a value."""


def draws(push: int, everything: int) -> Sequence[int]:
    """Return the seeds 0 to `everything`, or, at a push, `push` of them, others on each day."""
    first = datetime.now(timezone.utc).toordinal() * push
    return range(everything) if EVERYTHING else [(first + number) % everything for number in range(push)]


def seeds(values: Iterable[int], name: str = "seed") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test once for each value of its argument `name`, each with a `tmp_path` and a
    `monkeypatch` of its own. A failure names the value; with GPUGAUGE_SEED only that value is run.
    """
    chosen = [int(os.environ["GPUGAUGE_SEED"])] if "GPUGAUGE_SEED" in os.environ else list(values)
    assert chosen

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        assert len(others) < len(signature.parameters), f"{test.__name__} has no argument {name}"

        @functools.wraps(test)
        def all_values(**arguments: object) -> None:
            print(f"{test.__name__}: {name} {', '.join(map(str, chosen))}")
            for value in chosen:
                with pytest.MonkeyPatch.context() as patch:
                    own = dict(arguments)
                    if "monkeypatch" in own:
                        own["monkeypatch"] = patch
                    if isinstance(path := own.get("tmp_path"), Path):
                        own["tmp_path"] = path / str(value)
                        (path / str(value)).mkdir()
                    try:
                        test(**own, **{name: value})
                    except Exception as error:
                        raise AssertionError(
                            f"{name} {value} of {test.__name__} (GPUGAUGE_SEED={value} repeats it): {error}"
                        ) from error

        all_values.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # read by pytest
        del all_values.__wrapped__
        limited: Callable[..., None] = pytest.mark.timeout(SECONDS * len(chosen))(all_values)
        return limited

    return decorate
