"""Some hours of the soak (`python -m qa.soak` runs a month), and its detection of faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from gpugauge.collectors.device.busy import EngineAccount
from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.sessions.listener import Sessions
from qa.soak.daemon import soak


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


def test_some_hours_of_jobs() -> None:
    made = soak(180, seed=1)

    assert made.load.began > 10
    assert made.load.ended.total() > 5
    assert dict(made.watch.examples) == {}
    assert made.watch.max_processes <= made.watch.max_expected
    assert made.watch.memory[0].descriptors == made.watch.memory[-1].descriptors


def _half(drain: Callable[..., None]) -> Callable[..., None]:
    def drained(account: EngineAccount, samples: Any, *more: Any, **named: Any) -> None:
        drain(account, [[stamp, percent // 2] for stamp, percent in samples], *more, **named)

    return drained


@pytest.mark.parametrize(
    ("place", "name", "replacement", "noticed"),
    [
        (EngineAccount, "drain", _half(EngineAccount.drain), "busy seconds that differ"),
        (Sessions, "_sweep", lambda *_: None, "families of processes that ended long ago"),
        (ProcessCollector, "collect", None, "collectors that failed"),
    ],
    ids=["busy time halved", "sessions kept", "a collector that raises"],
)
def test_the_soak_detects(place: type, name: str, replacement: Any, noticed: str) -> None:
    with patch.object(place, name, replacement):
        made = soak(60, seed=1)

    assert noticed in made.watch.wrong
