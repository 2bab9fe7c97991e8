"""The part of the waits in which the device is idle, compared with a model of a device whose work queue is known."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

MS = 1_000_000  # nanoseconds


class Device:
    """A stream that works off what is queued. Times are in nanoseconds."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.now = 0
        self.free_at = 0
        self.initialized, self.capturing, self.current = True, False, 0
        self.created = self.recorded = 0

    def launch(self, work: int) -> None:
        self.free_at = max(self.free_at, self.now) + work

    def idle_within(self, begin: int, end: int) -> int:
        """Return the time without work between two moments; nothing is launched meanwhile."""
        return max(0, end - max(begin, self.free_at))

    def event(self, *, enable_timing: bool = False) -> Event:
        self.created += 1
        return Event(self, enable_timing)


class Event:
    def __init__(self, device: Device, timing: bool) -> None:
        self._device, self._timing, self._at = device, timing, -1

    def record(self) -> None:
        assert self._device.initialized
        assert not self._device.capturing  # would be an error in CUDA, too
        self._device.recorded += 1
        self._at = max(self._device.now, self._device.free_at)

    def query(self) -> bool:
        assert not self._device.capturing
        return self._at <= self._device.now

    def elapsed_time(self, end: Event) -> float:
        assert self._timing
        assert end.query()
        return (end._at - self._at) / MS


DEVICE = Device()
torch = ModuleType("torch")
cuda: Any = ModuleType("torch.cuda")
torch.cuda = cuda  # type: ignore[attr-defined] # the module under test reads it
cuda.is_initialized = lambda: DEVICE.initialized
cuda.current_device = lambda: DEVICE.current
cuda.is_current_stream_capturing = lambda: DEVICE.capturing
cuda.Event = DEVICE.event
with mock.patch.dict(sys.modules, {"torch": torch}):
    sys.modules.pop("gpugauge.hook.waits", None)
    waits: Any = importlib.import_module("gpugauge.hook.waits")


def exposed(*, used: tuple[int, ...] = (0,)) -> Any:
    DEVICE.reset()
    found = waits.ExposedWaits()
    found.used = used
    return found


def wait(tracker: Any, nanoseconds: int) -> int:
    """Wait for a batch; return for how long the device was idle."""
    begun = DEVICE.now
    tracker.begin()
    DEVICE.now += nanoseconds
    tracker.end(DEVICE.now, nanoseconds)
    return DEVICE.idle_within(begun, DEVICE.now)


def finish(tracker: Any) -> float | None:
    """Let the device do all its work, and return the idle nanoseconds of the waits."""
    DEVICE.now = max(DEVICE.now, DEVICE.free_at)
    tracker.collect()
    result: float | None = tracker.nanoseconds
    return result


steps = st.tuples(st.integers(0, 200 * MS), st.integers(20 * MS, 300 * MS), st.booleans())


@given(st.lists(steps, min_size=1, max_size=40))
def test_long_waits_are_measured_exactly(program: list[tuple[int, int, bool]]) -> None:
    tracker, true = exposed(), 0
    for work, waited, collects in program:
        DEVICE.launch(work)
        true += wait(tracker, waited)
        if collects:
            tracker.collect()

    assert finish(tracker) == pytest.approx(true, abs=len(program))


@given(st.lists(st.integers(1, 20 * MS - 1), min_size=1, max_size=300), st.booleans(), st.integers(0, 5 * MS))
def test_short_waits_are_measured_once_in_20_ms_for_all_of_them(waited: list[int], idle: bool, between: int) -> None:
    tracker = exposed()
    DEVICE.launch(0 if idle else 10**15)
    for nanoseconds in waited:
        wait(tracker, nanoseconds)
        tracker.collect()
        DEVICE.now += between

    # The first event of each, the second of one in 20 ms.
    assert DEVICE.recorded <= len(waited) + 1 + DEVICE.now // (20 * MS)
    if idle:
        unmeasured = sum(waited) - (finish(tracker) or 0.0)
        assert 0 <= unmeasured <= 20 * MS + max(waited)
    else:
        assert finish(tracker) == pytest.approx(0.0, abs=len(waited))


def test_a_long_wait_between_short_ones_counts_for_itself_only() -> None:
    tracker = exposed()
    wait(tracker, 1 * MS)  # measured: the first one
    wait(tracker, 2 * MS)  # not measured
    DEVICE.launch(10**12)
    wait(tracker, 30 * MS)  # the device works
    assert finish(tracker) == pytest.approx(1 * MS)

    DEVICE.now += 20 * MS
    wait(tracker, 4 * MS)  # stands for the wait of 2 ms, too
    assert finish(tracker) == pytest.approx(7 * MS)

    DEVICE.now += 20 * MS
    wait(tracker, 5 * MS)  # stands for itself
    assert finish(tracker) == pytest.approx(12 * MS)


def test_a_wait_of_20_ms_is_a_long_one() -> None:
    tracker = exposed()
    wait(tracker, 1 * MS)
    wait(tracker, 2 * MS)  # not measured
    wait(tracker, 20 * MS)

    assert finish(tracker) == pytest.approx(21 * MS)


def test_a_wait_is_measured_again_exactly_20_ms_after_the_last_measurement() -> None:
    tracker = exposed()
    for _ in range(2):
        wait(tracker, 1 * MS)
        DEVICE.now += 19 * MS

    assert finish(tracker) == pytest.approx(2 * MS)


def test_the_idle_time_of_a_wait_is_at_most_the_wait() -> None:
    tracker = exposed()
    tracker.begin()
    DEVICE.now += 50 * MS  # the batch arrived after 30 ms; the thread went on late
    tracker.end(DEVICE.now, 30 * MS)
    assert finish(tracker) == pytest.approx(30 * MS)

    tracker.begin()
    DEVICE.now += 50 * MS
    tracker.end(DEVICE.now, 0)
    assert finish(tracker) == pytest.approx(30 * MS)


def test_nothing_is_known_before_the_device_has_completed_a_wait() -> None:
    tracker = exposed()
    tracker.collect()
    assert tracker.nanoseconds is None

    DEVICE.launch(100 * MS)
    wait(tracker, 40 * MS)
    tracker.collect()
    assert tracker.nanoseconds is None
    assert finish(tracker) == pytest.approx(0.0, abs=1)


def test_waits_complete_in_their_order() -> None:
    tracker = exposed()
    wait(tracker, 40 * MS)
    DEVICE.launch(100 * MS)
    wait(tracker, 40 * MS)
    wait(tracker, 80 * MS)
    tracker.collect()

    assert finish(tracker) == pytest.approx((40 + 20) * MS)


@pytest.mark.parametrize("state", ["unused", "another device", "not initialized", "capturing"])
def test_no_event_where_it_would_be_an_error_or_create_a_context(state: str) -> None:
    tracker = exposed(used=() if state == "unused" else (1,) if state == "another device" else (0, 1))
    DEVICE.initialized = state != "not initialized"
    DEVICE.capturing = state == "capturing"
    wait(tracker, 40 * MS)

    assert (DEVICE.created, finish(tracker)) == (0, None)


def test_one_of_several_devices_is_measured() -> None:
    tracker = exposed(used=(0, 1))
    DEVICE.current = 1
    wait(tracker, 40 * MS)

    assert finish(tracker) == pytest.approx(40 * MS)


def test_nothing_is_read_while_a_graph_is_captured() -> None:
    tracker = exposed()
    wait(tracker, 40 * MS)
    DEVICE.capturing = True
    tracker.collect()
    assert tracker.nanoseconds is None

    DEVICE.capturing = False
    assert finish(tracker) == pytest.approx(40 * MS)


def test_an_end_without_a_begin_measures_nothing() -> None:
    tracker = exposed()
    wait(tracker, 40 * MS)
    tracker.end(DEVICE.now, 40 * MS)  # its begin was during a capture, or before the process was watched
    assert finish(tracker) == pytest.approx(40 * MS)

    tracker.begin()
    tracker.used = ()
    tracker.begin()
    DEVICE.now += 40 * MS
    tracker.end(DEVICE.now, 40 * MS)
    assert finish(tracker) == pytest.approx(40 * MS)


def test_events_are_used_again() -> None:
    tracker = exposed()
    for nanoseconds in [1 * MS, 40 * MS] * 100:
        wait(tracker, nanoseconds)
        tracker.collect()

    assert DEVICE.created == 2


def test_a_device_that_completes_nothing_holds_128_events() -> None:
    tracker = exposed()
    DEVICE.launch(10**15)
    for _ in range(100):
        wait(tracker, 40 * MS)
    assert DEVICE.created == 128

    DEVICE.now = DEVICE.free_at
    tracker.collect()
    wait(tracker, 40 * MS)
    assert finish(tracker) == pytest.approx(40 * MS)
