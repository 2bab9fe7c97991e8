"""Readings on demand, beside those of the schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gpugauge.driver.reader import SCRAPE_GROUPS, ReadingIntervals, Schedule
from gpugauge.driver.supervisor import Supervisor
from tests.driver.fakeworker import Node

RARE = ReadingIntervals({"fast": 3600.0, "samples": 3600.0, "normal": 3600.0}, deadline=0.05, open_deadline=0.05)


class Started:
    """A supervisor after its first reading."""

    def __init__(self, node: Node) -> None:
        self.supervisor = Supervisor(RARE, worker=node.spawn)
        self.read = threading.Event()
        self.supervisor.on_reading = self.read.set
        self.supervisor.start()
        self.next()

    def next(self) -> float:
        """Wait for a reading; return its begin."""
        assert self.read.wait(10)
        self.read.clear()
        return self.supervisor.read_at


@pytest.fixture
def node() -> Node:
    return Node("GPU-a", "GPU-b")


@pytest.fixture
def started(node: Node) -> Iterator[Started]:
    made = Started(node)
    yield made
    made.supervisor.stop()


def test_reading_on_demand_has_what_a_scrape_needs(started: Started, node: Node) -> None:
    first, before = started.supervisor.read_at, time.monotonic()
    started.supervisor.drain()

    started.supervisor.request_reading()
    second = started.next()

    assert first < before <= second
    groups = [arguments["groups"] for op, arguments in node.workers[0].requests if op == "read"]
    assert groups[2:] == [["fast", "samples"]] * 2
    assert [reply.uuid for reply in started.supervisor.drain()] == ["GPU-a", "GPU-b"]


def test_failed_reading_is_no_reading(started: Started, node: Node) -> None:
    before = started.supervisor.read_at
    node.silent = True
    started.supervisor.request_reading()

    assert started.next() == before


def test_reading_on_demand_does_not_delay_the_other_groups() -> None:
    intervals, schedule = ReadingIntervals({"fast": 1.0, "samples": 2.0, "normal": 5.0}), Schedule()
    schedule.take(intervals, 0.0)

    assert schedule.take(intervals, 3.0, SCRAPE_GROUPS, only=True) == ["fast", "samples"]
    assert schedule.take(intervals, 4.0) == ["fast", "normal"]
