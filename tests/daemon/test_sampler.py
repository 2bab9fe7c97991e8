import random
import threading
import time
from collections.abc import Callable

import pytest

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverView, Reply
from gpugauge.metric import Table, families
from gpugauge.snapshot import Section, Snapshot
from tests.drawn import seeds

ROWS = (Table().gauge("gpu_pci_devices", "GPUs on the bus.", lambda v: v),)


class Fake(RegisteredCollector):
    metrics = ROWS

    def __init__(self, name: str, failing: tuple[float, ...] = ()) -> None:
        self.name, self.failing = name, failing
        self.replies: list[tuple[Reply, ...]] = []

    def collect(self, tick: Tick) -> Section:
        self.replies.append(tick.replies)
        if tick.timestamp in self.failing:
            raise RuntimeError("no")
        return Section(self.name, families(ROWS, [((), 1)]))


def sampler(*collectors: Fake, published: list[Snapshot] | None = None) -> Sampler:
    replies = iter([(Reply(1, "read"),), ()])
    publish = (published if published is not None else []).append
    return Sampler(collectors, lambda: (DriverView(up=False, reason="off"), next(replies, ())), publish, 0.01)


def reader() -> tuple[DriverView, tuple[Reply, ...]]:
    return DriverView(up=False, reason="off"), ()


def three_ticks(made: Sampler, published: list[Snapshot], after_tick: Callable[[], None] = lambda: None) -> int:
    """Run until three snapshots are published; return their number."""
    stop = threading.Event()

    def after() -> None:
        if len(published) == 3:
            stop.set()
        after_tick()

    made.run(stop, after)
    return len(published)


def values(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], object]:
    return {k: v for s in snapshot.sections for f in s.families if f.metric.name == name for k, v in f.samples}


def test_failing_collector_loses_its_own_section_only() -> None:
    snapshot = sampler(Fake("good"), Fake("bad", (5.0,))).tick(5.0, 1.0)

    assert [s.collector for s in snapshot.sections] == ["good", "exporter"]
    assert values(snapshot, "gpugauge_collector_success") == {("good",): 1, ("bad",): 0}
    assert values(snapshot, "gpugauge_collector_failures_total") == {("good",): 0, ("bad",): 1}


def test_last_success_is_kept_through_a_failure_and_absent_before_the_first() -> None:
    s = sampler(Fake("late", (1.0, 3.0)))
    name = "gpugauge_collector_last_success_timestamp_seconds"

    timestamps = [values(s.tick(t, t), name) for t in (1.0, 2.0, 3.0)]

    assert timestamps == [{}, {("late",): 2.0}, {("late",): 2.0}]


def test_each_collector_gets_each_reply_once() -> None:
    one, two = Fake("one"), Fake("two")
    s = sampler(one, two)

    s.tick(1.0, 1.0)
    s.tick(2.0, 2.0)

    assert [len(r) for r in one.replies] == [1, 0]
    assert one.replies == two.replies


def test_failure_is_logged_when_it_starts_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    s = sampler(Fake("bad", (1.0, 2.0)))

    with caplog.at_level("INFO"):
        for t in (1.0, 2.0, 3.0, 4.0):
            s.tick(t, t)

    assert [r.message for r in caplog.records] == ["collector failed", "collector recovered"]


def test_collector_that_is_switched_off_and_on_again_keeps_its_health() -> None:
    bad, good = Fake("bad", (1.0,)), Fake("good")
    s = sampler(bad, good)
    name = "gpugauge_collector_failures_total"

    before = values(s.tick(1.0, 1.0), name)
    s.configure([good], 5.0, 5.0)
    off = s.tick(2.0, 2.0)
    s.configure([bad, good], 5.0, 5.0)
    after = values(s.tick(3.0, 3.0), name)

    assert before == after == {("bad",): 1, ("good",): 0}
    assert (values(off, name), set(off.health)) == ({("good",): 0}, {"good"})


def test_run_ticks_until_it_is_stopped() -> None:
    published: list[Snapshot] = []

    assert three_ticks(sampler(Fake("good"), published=published), published) == 3


class Expecting(ScrapeForecast):
    """Schedules every tick at once and records the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, float, float]] = []

    def next_tick(self, last: float, interval: float, idle: float, lead: float) -> float:
        self.asked.append((interval, idle, lead))
        return last


class Recording(ScrapeForecast):
    def next_tick(self, last: float, interval: float, idle: float, lead: float) -> float:
        assert last <= time.monotonic(), "a tick that came early has put off the next one"
        return super().next_tick(last, interval, idle, lead)


def test_run_ticks_when_the_timetable_says_so() -> None:
    published: list[Snapshot] = []
    expecting = Expecting()
    hourly = Sampler([Fake("good")], reader, published.append, 3600.0, forecast=expecting, idle=7200.0)

    assert three_ticks(hourly, published) == 3
    assert {(interval, idle) for interval, idle, _ in expecting.asked} == {(3600.0, 7200.0)}
    assert all(0 < lead < 1800.1 for *_, lead in expecting.asked)
    assert expecting.ticking == pytest.approx(expecting.asked[-1][2] - 0.03)


@pytest.mark.parametrize("after_readings", [False, True])
def test_wake_causes_a_tick(after_readings: bool) -> None:
    published: list[Snapshot] = []
    hourly = Sampler(
        [Fake("good")], reader, published.append, 3600.0, forecast=Recording(), after_readings=after_readings
    )

    assert three_ticks(hourly, published, hourly.wake) == 3


def test_wake_after_stop_ends_the_run() -> None:
    stop, ticked = threading.Event(), threading.Event()
    hourly = Sampler([Fake("good")], reader, lambda _: None, 3600.0)
    thread = threading.Thread(target=hourly.run, args=[stop, ticked.set])
    thread.start()
    assert ticked.wait(10)
    stop.set()
    hourly.wake()
    thread.join(10)

    assert not thread.is_alive()


def test_tick_comes_also_without_the_reading_that_is_to_cause_it() -> None:
    published: list[Snapshot] = []

    assert three_ticks(Sampler([Fake("good")], reader, published.append, 0.01, after_readings=True), published) == 3


@seeds(range(5))
def test_a_long_wait_is_reported_in_time(seed: int) -> None:
    """As systemd sees it: no pause is longer than the watchdog permits, however long the interval is."""
    chance = random.Random(seed)
    permitted, interval = chance.uniform(0.1, 0.2), chance.choice([0.05, 0.3, 3600.0])
    stop, reports = threading.Event(), [time.monotonic()]
    made = Sampler([Fake("good")], reader, lambda _: None, interval)

    def report() -> None:
        reports.append(time.monotonic())

    thread = threading.Thread(target=made.run, args=[stop, report, report, permitted / 2])
    thread.start()
    time.sleep(1.0)
    stop.set()
    made.wake()
    thread.join(10)

    assert len(reports) >= 1.0 / permitted
    assert not thread.is_alive()
