"""The supervisor: the thread that starts, watches and replaces the worker, reads the GPUs and publishes the result. A
GPU whose call hangs is quarantined while the next worker reads the others.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.base.guard import Loop
from gpugauge.base.logline import Condition, fields
from gpugauge.driver.advice import advice
from gpugauge.driver.api import RELEASED, DriverFacts, DriverView, Reply
from gpugauge.driver.bus import BusDevice
from gpugauge.driver.client import GRACE_SECONDS, Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.failing import UP_SECONDS
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.reader import QUARANTINED, Pace, Reader, ReadError, ReadingIntervals
from gpugauge.driver.recycling import RECYCLES, Recycling, RecyclingLimits
from gpugauge.driver.remembered import StateFile
from gpugauge.driver.roster import Roster
from gpugauge.driver.vendors import VENDORS, Vendor

log = logging.getLogger("gpugauge.driver")


class DriverState:
    """`reason` is "ok" while the driver is open; `lost_since` (monotonic) is set while a driver that was up is down."""

    def __init__(self, vendor: Vendor = VENDORS[0]) -> None:
        self._vendor = vendor
        self.reason = "starting"
        self.facts: DriverFacts | None = None
        self.lost_since: float | None = None
        self._device_count: int | None = None  # when the driver was opened last
        self._was_released = False  # since then: GPUs may have been reset or exchanged
        self._unread = False  # it is down because it was open and nothing could be read
        self._failure = Condition(log, logging.ERROR)

    def set_open(self, facts: DriverFacts) -> bool:
        """Record that the driver is open; return whether it has as many GPUs as before, and was not released since."""
        same_devices = facts.device_count == self._device_count and not self._was_released
        self._was_released = False
        self.facts, self._device_count = facts, facts.device_count
        self.set_read(not self._unread or not facts.device_count)
        return same_devices

    def set_read(self, read: bool) -> None:
        """Record that a driver that is open is up, unless nothing could be `read` from it before, and still cannot."""
        if read and self.reason != "ok" and self.facts:
            self.reason, self.lost_since, self._unread = "ok", None, False
            facts = self.facts
            self._failure.recovered("driver opened", version=facts.driver_version, devices=facts.device_count)

    def set_down(self, reason: str, *, unread: bool = False, **log_fields: object) -> None:
        """Record that the driver is down; it is logged once per reason. `unread`: it is open, but cannot be read."""
        self._failure.failing(advice(reason, self._vendor), reason=reason, **log_fields)
        self.reason, self.facts, self._unread = reason, None, unread
        if self._device_count is not None and self.lost_since is None:
            self.lost_since = time.monotonic()

    def set_released(self, seconds: float) -> None:
        """Record that the driver is released for `seconds`."""
        self.reason, self.facts, self.lost_since, self._was_released = RELEASED, None, None, True
        log.info("driver released", extra=fields(seconds=round(seconds)))


_MAX_UNREAPED = 2  # workers that hang inside the kernel; no further one is started


class WorkerSlot:
    """Starts and ends worker processes, one at a time. `starts` counts them."""

    def __init__(self, spawn: Callable[[], Worker]) -> None:
        self._spawn = spawn
        self._unreaped: list[Worker] = []
        self._ending: Worker | None = None
        self.current: Worker | None = None
        self.starts = 0

    def start(self) -> Worker:
        """Start and return the next worker. Raises OSError."""
        self.current = self._spawn()
        self.starts += 1
        return self.current

    def end(self, sentence: str = "", *, graceful: bool = True, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the current worker, see Worker.end(). A `sentence` is logged together with the exit of the process."""
        worker = self._ending = self.current
        self.current = None
        assert worker is not None
        if not worker.end(graceful=graceful, grace_seconds=grace_seconds):
            self._unreaped.append(worker)
        self._ending = None
        if sentence:
            log.warning(sentence, extra=fields(worker=worker.ending(), pid=worker.pid))

    def cancel_wait(self) -> None:
        """Make a thread that waits for a reply or for the end of a worker continue at once. For other threads."""
        current, ending = self.current, self._ending
        if current:
            current.interrupt()
        if ending:
            ending.kill()

    def unkillable(self) -> int:
        """Return the number of former workers that have not ended."""
        self._unreaped = [w for w in self._unreaped if not w.reaped()]
        return len(self._unreaped)


_MAX_CLOCK_DRIFT_SECONDS = 2.0  # a larger difference of the two clocks changes the reported end


class Release:
    """A period in which the driver stays closed; one thread sets it, others read it. It ends by the monotonic clock."""

    def __init__(self) -> None:
        self._end = 0.0
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        """Release the driver for `seconds` from now, whatever was requested before."""
        self._until, self._end = 0.0, time.monotonic() + seconds

    def end(self) -> None:
        """End the release."""
        self._end = 0.0

    def left(self) -> float:
        """Return the seconds until the end; 0 without a release."""
        return max(0.0, self._end - time.monotonic())

    def until(self) -> float:
        """Return the Unix time of the end; it is constant unless the clock is set or the end is moved."""
        now = time.time() + self.left()
        if abs(now - self._until) > _MAX_CLOCK_DRIFT_SECONDS:
            self._until = round(now, 3)
        return self._until


# The longest delay after a failed worker or a driver that was up, and after a driver that was not.
_MAX_WORKER_BACKOFF_SECONDS, _MAX_DRIVER_BACKOFF_SECONDS = 10.0, 60.0
# A worker that has replied for this long ends the back-off.
_STABLE_SECONDS = 30.0


class Restarts:
    """`next_start` is the earliest time (monotonic seconds) of the next start, `count` the number of failed workers."""

    def __init__(self) -> None:
        self.next_start = 0.0
        self.count = 0
        self._backoff = 0.0
        self._started = 0.0

    def record_start(self, now: float) -> None:
        """Record the start of a worker."""
        self._started = now

    def record_replies(self, now: float) -> None:
        """Record that the worker has replied to a reading that began at `now`."""
        if now - self._started > _STABLE_SECONDS:
            self._backoff = 0.0

    def after_worker_failure(self, now: float) -> None:
        """Start the next worker at once after the first failure, then after twice the delay of the failure before."""
        self.count += 1
        self.next_start = now + self._backoff
        self._backoff = min(_MAX_WORKER_BACKOFF_SECONDS, max(0.5, self._backoff * 2))

    def after_driver_failure(self, now: float, *, was_up: bool = False) -> None:
        """Open the driver again after a second, then after twice the delay of the failure before."""
        longest = _MAX_WORKER_BACKOFF_SECONDS if was_up else _MAX_DRIVER_BACKOFF_SECONDS
        self._backoff = min(longest, max(1.0, self._backoff * 2))
        self.next_start = now + self._backoff

    def reset(self) -> None:
        """Start the next worker at once, without a back-off."""
        self.next_start = self._backoff = 0.0


UNKILLABLE = "worker_unkillable"
_KEEPS = "the worker keeps capabilities, which it does not need: allow the daemon's processes the system call capset"
# While a reply is awaited, the view is published and stop and release are checked at this interval.
_WAIT_SLICE_SECONDS = 0.5
# The time that a worker which works gets to end: it may be in the middle of a call.
_PLANNED_GRACE_SECONDS = 5.0
# The view is stale after this time without a publication: more than the longest interval and the end of a worker.
_MAX_VIEW_AGE_SECONDS = 75.0
_UP_INTERVALS = UP_SECONDS  # for which a GPU must be read again before it is up; an interval is a second


class _InterruptedError(Exception):
    """A reply is no longer awaited: the driver is to be released, or the daemon stops."""


class Supervisor:
    """Methods are for any thread. `devices` are the GPUs to read, by index or uuid, all when empty; `bus` returns those
    of the kernel driver, `pci` those on the bus, or None. `paths` are those that a worker reads, by option.
    """

    def __init__(
        self,
        intervals: ReadingIntervals,
        worker: Callable[[], Worker],
        simulate: dict[str, Any] | None = None,
        devices: Collection[str] = (),
        limits: RecyclingLimits | None = None,
        bus: Callable[[], frozenset[str] | None] = lambda: None,
        forecast: ScrapeForecast | None = None,
        pci: Callable[[], Iterable[BusDevice] | None] = lambda: None,
        is_suspended: Callable[[str], bool] = lambda _: False,
        state_file: StateFile | None = None,
        forget_after: float = 0.0,
        host: str = "",
        vendor: Vendor = VENDORS[0],
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self._intervals, self._devices = intervals, frozenset(devices)
        self._simulated = simulate is not None
        self._options: dict[str, Any] = {"simulate": simulate} if self._simulated else dict(paths or {})
        self._slot = WorkerSlot(worker)
        self._inventory = Inventory(intervals.limits, host, vendor)
        self._inventory.is_suspended = is_suspended
        self._roster = Roster(self._inventory, pci, state_file)
        self._roster.forget_after = forget_after
        self._recycling = Recycling(limits or RecyclingLimits(), bus)
        self._recycles = dict.fromkeys(RECYCLES, 0)
        self._release = Release()
        forecast = forecast or ScrapeForecast()
        self._reader = Reader(self._inventory, forecast, self._receive)
        self._pace = Pace(forecast)
        self._restarts = Restarts()
        self._state = DriverState(vendor)
        self._keeps = Condition(log)
        self._view, self._published = DriverView(up=False, reason="starting", vendor=vendor), time.monotonic()
        self._stop = threading.Event()
        self.on_reading: Callable[[], None] = lambda: None  # called by the thread when it has read, or tried to
        self.settled = threading.Event()  # set once the first attempt to open the driver has ended
        self._thread = Loop("driver", self._run, self._stop, self._finish)

    def start(self) -> None:
        """Start the thread, which starts the first worker."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread, within about 1.5 s even if a call hangs."""
        self._stop.set()
        self._pace.wake()
        self._thread.join(0.3)
        if self._thread.is_alive():
            self._slot.cancel_wait()
            self._thread.join(1.2)

    def view(self) -> DriverView:
        """Return the latest view, without GPUs if the thread has stopped publishing."""
        view, published = self._view, self._published
        age = time.monotonic() - published
        return view if age < _MAX_VIEW_AGE_SECONDS else replace(view, up=False, reason="stuck", devices=())

    def drain(self) -> tuple[Reply, ...]:
        """Return and remove the replies since the last call, oldest first."""
        return self._inventory.drain()

    def request_reading(self) -> None:
        """Read now what a scrape needs, in addition to the scheduled readings."""
        self._pace.demand()

    @property
    def read_at(self) -> float:
        """The begin of the last complete reading of what a scrape needs, in monotonic seconds."""
        return self._reader.read_at

    def release(self, seconds: float) -> None:
        """Close the driver for `seconds` from now; the view has the reason "released" once it is closed."""
        self._release.begin(seconds)
        self._pace.wake()

    def attach(self) -> None:
        """End a release."""
        self._release.end()
        self._pace.wake()

    def forget(self, uuid: str) -> None:
        """Show a GPU that is down no longer, until it is read again."""
        self._roster.forget(uuid)
        self._pace.wake()

    def configure(
        self, intervals: ReadingIntervals, devices: Collection[str], limits: RecyclingLimits, forget_after: float
    ) -> None:
        """Use other settings from now on; the worker is replaced only if other devices are to be read."""
        self._intervals, self._inventory.limits, self._recycling.limits = intervals, intervals.limits, limits
        self._devices, self._roster.forget_after = frozenset(devices), forget_after

    def _run(self) -> None:
        try:
            back = self._pass()
        except _InterruptedError:
            self._slot.end(grace_seconds=GRACE_SECONDS if self._stop.is_set() else _PLANNED_GRACE_SECONDS)
        else:
            self._pace.wait(back)

    def _finish(self) -> None:
        if self._slot.current:
            self._slot.end()
        self._roster.close()

    def _pass(self) -> float:
        """Do what is due, and publish; return the seconds after which the next worker is due, if there is none."""
        self._pace.begin()
        try:
            self._turn()
        except _InterruptedError:
            raise
        except Exception as error:  # noqa: BLE001  (out of memory, for example: the readings must not stay as they are)
            self._thread.guard.record(error)
            self._down("failed", graceful=False)
        self._publish()
        self.settled.set()
        self.on_reading()
        self._inventory.up_seconds = _UP_INTERVALS * self._intervals.interval
        doubted = self._inventory.is_doubted() or bool(self._reader.slow)
        self._pace.end(self._intervals, self._reader.lead, doubted=doubted)
        back = self._release.left() or self._restarts.next_start - time.monotonic()
        return math.inf if self._slot.current else max(back, 0.05)

    def _turn(self) -> None:
        """Open the driver, read it, or replace the worker, whatever is due. Raises _InterruptedError."""
        self._roster.turn()
        if self._is_released():
            return
        if self._slot.current is None and time.monotonic() >= self._restarts.next_start:
            self._open()
        if self._slot.current:
            self._read(self._slot.current, time.monotonic())
        if self._slot.current and not self._pace.on_demand:
            # After the reading, so that the next worker misses as little as possible.
            down = any(not d.up and d.reason not in QUARANTINED for d in self._view.devices)
            reason = self._recycling.due(self._slot.current, self._devices, time.monotonic(), down=down)
            if reason:
                self._recycle(self._slot.current, reason)

    def _is_released(self) -> bool:
        """Begin or end a release; return whether the driver is to stay closed."""
        held, released = bool(self._release.left()), self._state.reason == RELEASED
        if held and not released:
            if self._slot.current:
                self._slot.end(grace_seconds=_PLANNED_GRACE_SECONDS)
            self._restarts.reset()
            self._inventory.release()
            self._state.set_released(self._release.left())
        elif released and not held:
            self._state.reason = "starting"
            log.info("driver release ended")
        return held

    def _recycle(self, worker: Worker, reason: str) -> None:
        """End a worker that works; the next one starts at once, and the counters continue."""
        self._recycles[reason] += 1
        log.info("worker replaced", extra=fields(reason=reason, resident_bytes=worker.resident_bytes()))
        self._slot.end(grace_seconds=_PLANNED_GRACE_SECONDS)
        self._restarts.next_start = 0.0  # at once; the back-off stays
        self._pace.wake()

    def _open(self) -> None:
        if self._slot.unkillable() >= _MAX_UNREAPED:
            self._down(UNKILLABLE)
            return
        now = time.monotonic()
        self._restarts.record_start(now)
        self._recycling.begin(self._devices, now)
        same_bus = self._roster.begin(now)
        try:
            worker = self._slot.start()
            reply = self._receive(worker, worker.open(**self._options), self._intervals.open_deadline)
        except OSError as error:
            self._down("worker_failed", error=str(error))
        except WorkerHangsError:
            self._down("timeout", "opening the driver timed out", graceful=False)
        except WorkerGoneError:
            self._down("worker_failed", "worker ended while it opened the driver")
        else:
            if reply.failed is None:
                if kept := worker.capabilities():
                    self._keeps.failing(_KEEPS, capabilities=f"{kept:#x}")
                same_devices = self._state.set_open(DriverFacts(**reply.values["driver"]))
                self._reader.begin(self._slot.starts, same_devices=same_devices and same_bus)
            else:
                self._down(reply.failed, **reply.failed_field)

    def _read(self, worker: Worker, now: float) -> None:
        """Read all GPUs that are due; end the worker if it or the driver failed."""
        facts = self._state.facts
        assert facts is not None
        try:
            on_demand, devices = self._pace.on_demand, self._devices
            failed = self._reader.read(worker, facts.device_count, self._intervals, devices, now, on_demand=on_demand)
        except ReadError as error:
            if not self._stop.is_set():
                self._slot.end(str(error), graceful=False)
                self._restarts.after_worker_failure(now)
                index, blamed = error.index, error.hangs or not worker.was_killed()
                if index is not None and blamed and self._reader.quarantine(index, hangs=error.hangs):
                    self._roster.settle_failed(facts.device_count, self._devices)
            return
        if failed is None:
            self._restarts.record_replies(now)
            self._roster.settle(facts.device_count, self._devices, now)
            self._state.set_read(self._state.reason == "ok" or any(d.up for d in self._inventory.devices(now)))
        else:
            self._down(failed.failed or "", unread=True, **failed.failed_field)

    def _receive(self, worker: Worker, number: int, deadline: float) -> Reply:
        """Return a reply; publish meanwhile, so that old values are dropped. Raises _InterruptedError, too."""
        begin = time.monotonic()
        while not worker.wait_for_reply(min(_WAIT_SLICE_SECONDS, worker.time_left(begin, deadline))):
            if self._stop.is_set() or self._release.left():
                raise _InterruptedError
            if worker.time_left(begin, deadline) <= 0:
                raise WorkerHangsError(f"no reply within {deadline:g} s")
            self._publish()
        return worker.receive(number, max(0.1, worker.time_left(begin, deadline)))

    def _down(
        self, reason: str, sentence: str = "", *, graceful: bool = True, unread: bool = False, **failure: object
    ) -> None:
        """End the worker, drop all readings, and open the driver again later."""
        if self._slot.current:
            self._slot.end(sentence, graceful=graceful)
        self._state.set_down(reason, unread=unread, **failure)
        self._restarts.after_driver_failure(time.monotonic(), was_up=self._state.lost_since is not None)
        self._roster.driver_down(reason, self._devices)

    def _publish(self) -> None:
        worker, state, now = self._slot.current, self._state, time.monotonic()
        devices = self._inventory.devices(now)
        self._roster.log_changes(devices, now)
        self._view = replace(
            self._view,
            up=state.reason == "ok",
            reason=state.reason,
            facts=state.facts if state.reason == "ok" else None,
            devices=devices,
            worker_starts=self._slot.starts,
            worker_restarts=self._restarts.count,
            workers_unkillable=self._slot.unkillable(),
            worker_pid=worker.pid if worker else None,
            worker_recycles=dict(self._recycles),
            simulated=self._simulated,
            released_until=self._release.until() if state.reason == RELEASED else None,
            lost_since=state.lost_since,
        )
        self._published = time.monotonic()
