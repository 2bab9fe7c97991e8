"""What a tick and a page cost, as a number of calls of our own functions: it does not depend on the machine.

A bound is about a quarter above what it was on the day it was set. What breaks one costs every node, all the time: find
out why before moving it (`python -m bench.tick` tells the parts).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpugauge
from gpugauge.simulator.scenario.load import load_scenario
from tests.virtual import VirtualDaemon

PACKAGE = str(Path(gpugauge.__file__).parent)
# 3.12 and later run comprehensions without a call; the simulator is no part of what a node pays for.
IGNORED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
SIMULATOR = f"{PACKAGE}/simulator"


def calls(work: Callable[[], object]) -> int:
    """Count the calls of functions of the package, in this thread."""
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
    """Return the calls a second over 30 s, in which every group of readings is read at least once."""

    def live() -> None:
        for _ in range(30):
            daemon.second()
            if scraped:
                daemon.scrape()

    return calls(live) / 30


def test_a_second_that_nobody_scrapes(daemon: VirtualDaemon) -> None:
    assert half_a_minute(daemon, scraped=False) < 3300


def test_a_second_that_is_scraped(daemon: VirtualDaemon) -> None:
    daemon.scrape()

    assert half_a_minute(daemon, scraped=True) < 3600


def test_a_page_from_nothing(daemon: VirtualDaemon) -> None:
    snapshot = daemon.second()
    daemon.exposition.__init__(60.0)  # type: ignore[misc]  # forget all bytes

    def page() -> None:
        daemon.exposition.publish(snapshot)
        daemon.scrape()

    assert calls(page) < 3900


def test_a_scrape_of_a_page_made_ahead(daemon: VirtualDaemon) -> None:
    daemon.scrape()
    daemon.second()

    assert calls(daemon.scrape) < 6
