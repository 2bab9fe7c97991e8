from __future__ import annotations

import time

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.driver.api import Reply
from gpugauge.driver.client import Worker
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.nvidia.caller import code_name
from gpugauge.driver.reader import Quarantine, Reader, ReadingIntervals
from tests.drawn import cases
from tests.driver.fakeworker import FakeWorker, Node


def test_the_first_reading_of_a_gpu_by_a_worker_may_take_longer() -> None:
    """It initialises the GPU: 1 to 3 s without persistence mode, while the deadline is 2 s."""
    intervals = ReadingIntervals({"fast": 1.0, "normal": 1.0})
    waits: list[tuple[int | None, float]] = []

    def receive(worker: Worker, number: int, deadline: float) -> Reply:
        reply = worker.receive(number, deadline)
        waits.append((reply.index, deadline))
        return reply

    forecast = ScrapeForecast()
    reader = Reader(Inventory(intervals.limits), forecast, receive)
    node, forecast.ticking = Node("GPU-a", "GPU-b"), 0.25
    for start in (1, 2):
        reader.begin(start, same_devices=True)
        worker = FakeWorker(node)
        for now in (0.0, 2.0):
            reader.read(worker, 2, intervals, frozenset(), 10.0 * start + now)

    assert (waits, reader.lead > 0.33) == ([(0, 4.0), (1, 4.0), (0, 2.0), (1, 2.0)] * 2, True)


@cases(
    ("devices", "gone"),
    [((28, "GPU-b"), False), (("GPU-a", 1), False), ((1, 1), True), ((15, 9), True), ((15, "GPU-b"), False)],
)
def test_the_driver_is_gone_if_no_gpu_answers(devices: tuple[str | int, ...], gone: bool) -> None:
    """A code that means the driver as a whole, from one GPU while another one answers, is about that GPU."""
    intervals = ReadingIntervals({"fast": 1.0})
    inventory = Inventory(intervals.limits)
    reader = Reader(inventory, ScrapeForecast(), lambda worker, number, deadline: worker.receive(number, deadline))
    reader.begin(1, same_devices=True)

    failed = reader.read(FakeWorker(Node(*devices)), 2, intervals, frozenset(), 10.0)
    inventory.settle(2, None)

    assert (failed is not None) is gone
    if not gone:
        answers = {code_name(d) if isinstance(d, int) else "ok" for d in devices}
        assert {device.reason for device in inventory.devices(time.monotonic())} == answers
        assert sum(device.up for device in inventory.devices(time.monotonic())) == 1


def test_quarantine_doubles_up_to_ten_minutes() -> None:
    quarantine, waits, now = Quarantine(), [], 0.0
    for _ in range(8):
        wait = quarantine.record_failure(2, now, hangs=True)
        assert wait is not None
        assert not quarantine.may_read(2, now + wait - 1)
        assert quarantine.may_read(2, now + wait)
        waits.append(wait)
        now += wait + 1
        quarantine.record_reply(2, now)  # one reply in between does not end the quarantine

    assert waits == [30, 60, 120, 240, 480, 600, 600, 600]


def test_failures_are_forgotten_after_ten_minutes_of_replies() -> None:
    quarantine = Quarantine()
    wait = quarantine.record_failure(2, 0.0, hangs=True)
    assert wait is not None

    quarantine.record_reply(2, wait + 599)
    assert 2 in quarantine
    quarantine.record_reply(2, wait + 601)

    assert 2 not in quarantine
    assert quarantine.record_failure(2, 2000.0, hangs=True) == 30


@cases(("later", "wait"), [(10.0, 60.0), (601.0, None)])
def test_second_crash_counts_only_within_minutes(later: float, wait: float | None) -> None:
    quarantine = Quarantine()

    first = quarantine.record_failure(0, 100.0, hangs=False)
    assert quarantine.may_read(0, 100.0)
    quarantine.record_reply(0, 100.0 + later)

    assert (first, quarantine.record_failure(0, 100.0 + later, hangs=False)) == (None, wait)


def test_other_devices_are_not_quarantined() -> None:
    quarantine = Quarantine()
    quarantine.record_failure(1, 0.0, hangs=True)

    assert quarantine.may_read(0, 0.0)
    quarantine.clear()
    assert quarantine.may_read(1, 0.0)
