"""Cost of a tick and of a scrape, as the number of calls of functions of the package, which is independent of the
machine.

Each bound was set at most a quarter above the measured value. Every node pays for exceeding it, so find the reason
before raising it: `python -m qa.bench.tick` measures the parts. Of the calls of a second, 260 refuse values that cannot
be true, and 140 look for the evidence that excludes other causes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.virtual import VirtualDaemon

import gpugauge
from gpugauge.simulator.scenario.load import load_scenario

PACKAGE = str(Path(gpugauge.__file__).parent)
# Python 3.12 and later run comprehensions without a call. The simulator does not run on a node.
IGNORED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
SIMULATOR = f"{PACKAGE}/simulator"


def calls(work: Callable[[], object]) -> int:
    """Return the number of calls of functions of the package in this thread."""
    number = 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal number
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(SIMULATOR):
            number += code.co_name not in IGNORED

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> VirtualDaemon:
    """Eight H100 with 24 processes, a minute after the start."""
    daemon = VirtualDaemon(load_scenario("bench-24"), tmp_path_factory.mktemp("proc"))
    for _ in range(60):
        daemon.second()
    return daemon


def half_a_minute(daemon: VirtualDaemon, *, scraped: bool) -> float:
    """Return the calls per second over 30 s, in which every group of readings is read at least once."""

    def live() -> None:
        for _ in range(30):
            daemon.second()
            if scraped:
                daemon.scrape()

    return calls(live) / 30


def test_second_without_a_scrape(daemon: VirtualDaemon) -> None:
    assert half_a_minute(daemon, scraped=False) < 4000


def test_second_with_a_scrape(daemon: VirtualDaemon) -> None:
    daemon.scrape()

    assert half_a_minute(daemon, scraped=True) < 4300


def test_body_without_reused_bytes(daemon: VirtualDaemon) -> None:
    snapshot = daemon.second()
    daemon.exposition.__init__(60.0)  # type: ignore[misc]  # forget all bytes

    def page() -> None:
        daemon.exposition.publish(snapshot)
        daemon.scrape()

    assert calls(page) < 3900


def test_scrape_of_a_rendered_body(daemon: VirtualDaemon) -> None:
    daemon.scrape()
    daemon.second()

    assert calls(daemon.scrape) < 6
