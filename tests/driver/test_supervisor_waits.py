"""While a reply is awaited: a release that is short, and a GPU that hung when nothing was known about it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpugauge.driver.bus import BusDevice
from gpugauge.driver.client import Worker, WorkerHangsError
from gpugauge.driver.reader import ReadingIntervals
from tests.driver.fakeworker import INTERVALS, Node, until, up

PATIENT = ReadingIntervals(INTERVALS.intervals, deadline=60.0, open_deadline=60.0)


def test_a_release_that_has_ended_at_once_leaves_no_worker_that_owes_a_reply(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next reading would take the old reply for its own."""
    node = Node("GPU-a")
    running = run(node)
    until(running, lambda v: v.up and up(v)["GPU-a"])
    running._intervals, node.silent = PATIENT, True
    time.sleep(0.05)  # the thread awaits a reply
    left = iter([60.0])
    monkeypatch.setattr(running._release, "left", lambda: next(left, 0.0))

    until(running, lambda _: bool(node.ends))
    node.silent = False
    view = until(running, lambda v: v.worker_starts == 2 and up(v)["GPU-a"])

    assert (node.ends[0][0], view.worker_restarts, node.running) == (True, 0, 1)


def test_a_gpu_that_hangs_at_the_start_is_down_before_the_next_worker_replies(run: Any) -> None:
    class Slow(Node):
        """All workers but the first take for ever to open the driver."""

        def spawn(self) -> Worker:
            self.silent = bool(self.workers)
            return super().spawn()

    node, bus = Slow(WorkerHangsError("no reply"), "GPU-b"), ["0000:01:00.0", "0000:41:00.0"]
    running = run(node, pci=lambda: [BusDevice(address, visible=True) for address in bus])
    running._intervals = PATIENT

    (down,) = until(running, lambda v: v.worker_starts == 2 and bool(v.devices)).devices

    assert (down.uuid, down.up, down.reason) == ("PCI-00000000:01:00.0", False, "hangs")
