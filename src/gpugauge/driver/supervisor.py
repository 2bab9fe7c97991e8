"""The thread that keeps a worker alive, asks it at each group's pace, and publishes what it said.

One failing GPU costs its own readings: a GPU whose call hangs is left out of the next worker and tried again later,
ever more rarely; its neighbours go on. The sampler and the scrape never wait for this thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from gpugauge.driver.api import LIFECYCLE, RELEASED, DriverFacts, DriverView, Group, Reply, code_name
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.intake import Intake
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.quarantine import Quarantine
from gpugauge.driver.recycling import RECYCLES, Limits, Upkeep
from gpugauge.driver.release import Release
from gpugauge.driver.schedule import Pace, Schedule
from gpugauge.driver.workers import Workers
from gpugauge.forecast import Timetable
from gpugauge.logline import Condition, fields
from gpugauge.status.driver_advice import advice

log = logging.getLogger("gpugauge.driver")

UNKILLABLE = "worker_unkillable"
# Seconds between two looks at everything else while an answer is awaited …
_SLICE = 0.5
# … for a worker that did nothing wrong to end by itself: it may be in the middle of a call …
_PATIENCE = 5.0
# … after which a worker has proven itself, the longest wait for another until then, and for a driver that is down.
_PROVEN, _LONGEST_RESTART, _LONGEST_RETRY = 30.0, 10.0, 60.0
# Before an expected scrape, besides the time that the last reading took: the sampler's own lead, and as much again.
LEAD = 0.2
# The thread tells how things stand at least every half second, or after the longest interval and ending a worker.
_SILENT = 75.0


class _InterruptedError(Exception):
    """An answer is no longer awaited: the driver is to be given back, or the daemon stops."""


class DriverSource:
    """Start with `start()`; all public methods may be called from any other thread.

    `devices` are those to read, by index or uuid, all when empty; `bus` lists the GPUs that the bus shows.
    """

    def __init__(
        self,
        pace: Pace,
        worker: Callable[[], Worker],
        simulate: dict[str, Any] | None = None,
        devices: Collection[str] = (),
        limits: Limits | None = None,
        bus: Callable[[], frozenset[str] | None] = lambda: None,
        timetable: Timetable | None = None,
    ) -> None:
        self._pace, self._devices = pace, frozenset(devices)
        self._options = {} if simulate is None else {"simulate": simulate}
        self._workers = Workers(worker)
        self._inventory = Inventory(pace.limits)
        self._intake = Intake(self._inventory)
        self._upkeep = Upkeep(limits or Limits(), bus)
        self._release = Release()
        self._facts: DriverFacts | None = None
        self._schedule, self._timetable, self._lead = Schedule(), timetable or Timetable(), LEAD
        self._quarantine = Quarantine()
        self._device_count = -1
        self._opened = self._retry_at = self._backoff = 0.0
        self._restarts = 0
        self._recycles = dict.fromkeys(RECYCLES, 0)
        self._reason = "starting"
        self._lost_since: float | None = None
        self._outage = Condition(log, logging.ERROR)
        self._view, self._told = DriverView(up=False, reason="starting"), time.monotonic()
        self._stop, self._wake = threading.Event(), threading.Event()
        self.settled = threading.Event()  # set once the first attempt has ended, well or not
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        """Begin; the first worker is started by the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread, within about a second and a half even if a call hangs."""
        self._stop.set()
        self._wake.set()
        self._thread.join(0.3)
        if self._thread.is_alive():
            self._workers.hurry()
            self._thread.join(1.2)

    def view(self) -> DriverView:
        """Return the latest view; frozen. Nothing is shown of the GPUs when the thread has stopped telling."""
        view, told = self._view, self._told
        return view if time.monotonic() - told < _SILENT else replace(view, up=False, reason="stuck", devices=())

    def drain(self) -> tuple[Reply, ...]:
        """Return and forget the answers that came since the last call, oldest first."""
        return self._intake.drain()

    def release(self, seconds: float) -> None:
        """Let go of the driver and leave it alone for so long from now, whatever was asked before; the view tells when
        it is done.
        """
        self._release.begin(seconds)
        self._wake.set()

    def attach(self) -> None:
        """End a release."""
        self._release.end()
        self._wake.set()

    def configure(self, pace: Pace, devices: Collection[str], limits: Limits) -> None:
        """Go on with other settings; the worker is replaced only if other devices are to be read."""
        self._pace, self._inventory.limits, self._upkeep.limits = pace, pace.limits, limits
        self._devices = frozenset(devices)

    # --- the thread ---

    def _run(self) -> None:
        next_tick = time.monotonic()
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self._turn()
            except _InterruptedError:
                self._workers.end(patience=0.3 if self._stop.is_set() else _PATIENCE)
                continue
            except Exception:  # no memory, say: the readings must not stay as they are
                log.exception("reading the driver failed")
                self._down("failed", polite=False)
            self._publish()
            self.settled.set()
            now = time.monotonic()
            if now >= next_tick:
                # Ticks missed while a call hung are not made up for.
                pace = self._pace
                next_tick = max(self._timetable.next_tick(next_tick, pace.interval, pace.idle, self._lead), now)
            due = next_tick
            if self._workers.current is None:
                back = now + self._release.left() if self._reason == RELEASED else self._retry_at
                due = min(next_tick, max(back, now + 0.05))
            self._wake.wait(max(0.0, due - now))
        if self._workers.current:
            self._workers.end()

    def _turn(self) -> None:
        """Do what is to be done now; raises _InterruptedError with a worker that owes an answer."""
        if self._is_released():
            return
        if self._workers.current is None and time.monotonic() >= self._retry_at:
            self._open()
        if self._workers.current:
            self._read(self._workers.current, time.monotonic())
        if self._workers.current:
            # After the reading, so that the next worker misses as little as possible.
            reason = self._upkeep.due(self._workers.current, self._devices, time.monotonic())
            if reason:
                self._recycle(self._workers.current, reason)

    def _is_released(self) -> bool:
        """Whether the driver is to be left alone; lets go of it, or takes it back."""
        held = self._release.held()
        if held and self._reason != RELEASED:
            if self._workers.current:
                self._workers.end(patience=_PATIENCE)
            self._reason, self._facts, self._lost_since = RELEASED, None, None
            self._inventory.release()
            log.info("the driver is released", extra=fields(seconds=round(self._release.left())))
        elif not held and self._reason == RELEASED:
            self._reason, self._retry_at, self._backoff = "starting", 0.0, 0.0
            log.info("the release of the driver is over")
        return held

    def _recycle(self, worker: Worker, reason: str) -> None:
        """End a worker that did nothing wrong; the next one starts at once, and the counters go on."""
        self._recycles[reason] += 1
        log.info("the worker is replaced", extra=fields(reason=reason, resident_bytes=worker.resident_bytes()))
        self._workers.end(patience=_PATIENCE)
        self._retry_at = 0.0
        self._wake.set()

    def _open(self) -> None:
        """Start a worker and let it open the driver."""
        if self._workers.stuck:
            self._down(UNKILLABLE)
            return
        self._opened = time.monotonic()
        self._upkeep.begin(self._devices, self._opened)
        try:
            worker = self._workers.start()
            reply = self._receive(worker, worker.send("open", **self._options), self._pace.open_deadline)
        except OSError as error:
            self._down("worker_failed", error=str(error))
        except WorkerHangsError:
            self._down("timeout", "opening the driver takes too long", polite=False)
        except WorkerGoneError:
            self._down("worker_failed", "the worker ended while it opened the driver")
        else:
            if reply.failed is None:
                self._begin(DriverFacts(**reply.values["driver"]))
            else:
                self._down(code_name(reply.failed))

    def _begin(self, facts: DriverFacts) -> None:
        """The driver is open: go on from what it says."""
        if facts.device_count != self._device_count:
            self._quarantine.clear()
        self._outage.recovered("the driver answers", version=facts.driver_version, devices=facts.device_count)
        self._facts, self._reason, self._lost_since, self._device_count = facts, "ok", None, facts.device_count
        self._schedule.reset()
        self._intake.begin(self._workers.starts)

    def _read(self, worker: Worker, now: float) -> None:
        """Ask for all GPUs at once and take the answers one by one: the first that does not come names the GPU."""
        assert self._facts is not None
        due = self._schedule.take(self._pace, now, scrape=self._timetable.is_near(now, self._pace.interval, self._lead))
        devices = set(range(self._facts.device_count)) - self._intake.excluded
        # Suspects last.
        indexes = sorted((i for i in devices if self._quarantine.may_read(i, now)), key=lambda i: i in self._quarantine)
        current: int | None = None
        try:
            numbers = worker.read([(i, self._groups(i, due)) for i in indexes])
            for index, number in zip(indexes, numbers, strict=True):
                current = index
                reply = self._receive(worker, number, self._pace.deadline)
                if reply.failed in LIFECYCLE:
                    self._intake.queue(index, reply)  # it may carry the event that says why
                    self._down(code_name(reply.failed or 0))
                    return
                self._quarantine.answered(index, time.monotonic())
                self._intake.accept(index, reply, self._devices)
        except (WorkerHangsError, WorkerGoneError) as error:
            if not self._stop.is_set():
                self._workers.end(f"the worker failed while it read GPU {current}: {error}", polite=False)
                self._restart(worker, current, now, hangs=isinstance(error, WorkerHangsError))
            return
        self._lead = LEAD + min(0.5 * self._pace.interval, time.monotonic() - now)
        if now - self._opened > _PROVEN:
            self._backoff = 0.0
        self._inventory.expect_only(set(indexes))

    def _receive(self, worker: Worker, number: int, deadline: float) -> Reply:
        """Wait for an answer, and let what is shown grow old meanwhile."""
        end = time.monotonic() + deadline
        while not worker.answered(min(_SLICE, end - time.monotonic())):
            if self._stop.is_set() or self._release.held():
                raise _InterruptedError
            if time.monotonic() >= end:
                raise WorkerHangsError(f"no answer within {deadline:g} s")
            self._publish()
        return worker.receive(number, max(0.1, end - time.monotonic()))

    def _groups(self, index: int, due: list[Group]) -> list[Group]:
        """A GPU that this worker has not identified yet is read whole."""
        return due if self._inventory.uuid(index) else ["static", *self._pace.intervals]

    def _restart(self, worker: Worker, index: int | None, now: float, *, hangs: bool) -> None:
        """Start another worker after a failure, the later the more often; leave the GPU out that it was reading, if
        it hung or ended the worker for the second time.
        """
        self._restarts += 1
        self._retry_at, self._backoff = now + self._backoff, min(_LONGEST_RESTART, max(0.5, self._backoff * 2))
        if index is None or (worker.was_killed() and not hangs):
            return
        wait = self._quarantine.failed(index, time.monotonic(), hangs=hangs)
        if wait is None:
            return
        uuid = self._inventory.uuid(index)
        if uuid:
            self._inventory.fail(uuid, "hangs" if hangs else "crashes_worker")
        log.warning("a GPU is left out", extra=fields(index=index, uuid=uuid, retry_seconds=wait))

    def _down(self, reason: str, sentence: str = "", *, polite: bool = True, **more: object) -> None:
        """Nothing can be read: end the worker, say so once, drop all readings, try again with back-off."""
        if self._workers.current:
            self._workers.end(sentence, polite=polite)
        self._outage.failing(advice(reason), reason=reason, **more)
        self._reason, self._facts = reason, None
        if self._device_count >= 0 and self._lost_since is None:  # it has answered before
            self._lost_since = time.monotonic()
        self._backoff = min(_LONGEST_RETRY, max(1.0, self._backoff * 2))
        self._retry_at = time.monotonic() + self._backoff
        self._inventory.reset_indexes()
        self._inventory.expect_only(set())

    def _publish(self) -> None:
        worker = self._workers.current
        self._view = DriverView(
            up=self._reason == "ok",
            reason=self._reason,
            facts=self._facts,
            devices=self._inventory.devices(time.monotonic()),
            worker_starts=self._workers.starts,
            worker_restarts=self._restarts,
            workers_unkillable=self._workers.unkillable(),
            worker_pid=worker.pid if worker else None,
            worker_recycles=dict(self._recycles),
            simulated=bool(self._options),
            released_until=self._release.until() if self._reason == RELEASED else None,
            lost_since=self._lost_since,
        )
        self._told = time.monotonic()
