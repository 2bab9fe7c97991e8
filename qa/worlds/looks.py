"""The status of a simulated node, as people see it who look again and again, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.virtual import VirtualDaemon

from gpugauge.simulator.scenario.load import Scenario
from gpugauge.status.model import Status
from gpugauge.status.node import build


def looks(made: Scenario, folder: Path, first: int, last: int, every: int = 4) -> Iterator[Status]:
    """Yield the status from a second to another one; `folder` is made."""
    folder.mkdir()
    daemon = VirtualDaemon(made, folder)
    for second in range(last):
        snapshot = daemon.second()
        if second >= first and second % every == 0:
            yield build(snapshot, daemon.history)
    daemon.close()
