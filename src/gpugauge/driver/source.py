"""The thread that keeps a worker alive, asks it at each group's pace, and publishes what it said.

One failing card costs its own readings: a card whose call hangs is left out of the next worker and tried again later,
ever more rarely; its neighbours go on. The sampler and the scrape never wait for this thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpugauge.driver.api import LIFECYCLE, DriverFacts, DriverView, Group, Reply, code_name
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.inventory import Inventory
from gpugauge.logs import Condition, fields

log = logging.getLogger("gpugauge.driver")

# What keeps a driver down, and what to do about it: one sentence for the log, the metric's reason is the code's name.
ADVICE = {
    "library_not_found": "libnvidia-ml.so.1 was not found: install the NVIDIA driver; a container needs the NVIDIA "
    "runtime and NVIDIA_DRIVER_CAPABILITIES=utility",
    "driver_not_loaded": "the NVIDIA library is there but its kernel driver is not loaded: load the module "
    "(modprobe nvidia), or give the container the device files",
    "no_permission": "the driver refuses this user: let it open /dev/nvidiactl and /dev/nvidia*",
    "library_mismatch": "library and kernel driver differ in version: after an upgrade reload the module or reboot",
    "gpu_not_found": "the driver found no GPU: is the card seated, powered and visible to this container?",
    "worker_unkillable": "two workers hang inside the kernel and cannot be ended: the driver is stuck, reboot the node",
    "worker_failed": "the process that talks to the driver fails at once; its last words are in this log",
    "timeout": "the driver does not answer when it is opened: look for Xid errors in the kernel log",
    "unknown": "the driver answers with an unknown error: if its device files were taken away from the container "
    "(systemctl daemon-reload does this), restart it",
}
_MAX_UNREAPED = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: how often each group of readings is asked for, and how long one answer may take."""

    intervals: dict[Group, float]
    deadline: float = 2.0
    # Without persistence mode opening takes 1-3 s a card.
    open_deadline: float = 30.0


@dataclass(slots=True)
class _Suspect:
    """A card whose call hung or ended the worker: how often in a row, and when to try it again (monotonic seconds)."""

    failures: int = 0
    until: float = 0.0


class DriverSource:
    """Start with `start()`; `view()` and `drain()` may be called from any other thread."""

    def __init__(
        self,
        pace: Pace,
        simulate: dict[str, Any] | None = None,
        worker: Callable[[], Worker] = Worker,
        allowed: Callable[[int, str], bool] = lambda _index, _uuid: True,
    ) -> None:
        self._pace, self._simulate, self._spawn, self._allowed = pace, simulate, worker, allowed
        self._inventory = Inventory({group: 2 * every + 5 for group, every in pace.intervals.items()})
        self._worker: Worker | None = None
        self._unreaped: list[Worker] = []
        self._facts: DriverFacts | None = None
        self._due: dict[Group, float] = {}
        self._suspects: dict[int, _Suspect] = {}
        self._excluded: set[int] = set()
        self._retry_at = self._backoff = 0.0
        self._starts = self._restarts = 0
        self._replies: deque[Reply] = deque(maxlen=100_000)
        self._reason = "starting"
        self._outage = Condition(log, logging.ERROR)
        self._view = DriverView(up=False, reason="starting")
        self._stop = threading.Event()
        self.settled = threading.Event()  # set once the first attempt has ended, well or not
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        """Begin; the first worker is started by the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker and the thread, within about a second and a half even if a call hangs."""
        self._stop.set()
        self._thread.join(0.3)
        worker = self._worker
        if self._thread.is_alive() and worker is not None:
            worker.interrupt()
            self._thread.join(1.2)

    def view(self) -> DriverView:
        """Return the latest view; frozen."""
        return self._view

    def drain(self) -> tuple[Reply, ...]:
        """Return and forget the answers that came since the last call, oldest first."""
        replies = []
        while self._replies:
            replies.append(self._replies.popleft())
        return tuple(replies)

    def _run(self) -> None:
        interval = min(self._pace.intervals.values())
        next_tick = time.monotonic()
        while not self._stop.is_set():
            if self._worker is None and time.monotonic() >= self._retry_at:
                self._open()
            if self._worker is not None:
                self._read(self._worker, time.monotonic())
            self._publish()
            self.settled.set()
            # Ticks missed while a call hung are not made up for.
            next_tick = max(next_tick + interval, time.monotonic())
            wake = next_tick if self._worker else min(next_tick, max(self._retry_at, time.monotonic() + 0.05))
            self._stop.wait(max(0.0, wake - time.monotonic()))
        if self._worker is not None:
            self._worker.end()

    def _open(self) -> None:
        """Start a worker and let it open the driver."""
        if len(self._unreaped) >= _MAX_UNREAPED:
            self._down("worker_unkillable")
            return
        try:
            self._worker = self._spawn()
        except OSError as error:
            self._down("worker_failed", error=str(error))
            return
        self._starts += 1
        try:
            reply = self._worker.ask("open", self._pace.open_deadline, simulate=self._simulate)
        except WorkerHangsError:
            self._end_worker("opening the driver takes too long", polite=False)
            self._down("timeout")
            return
        except WorkerGoneError:
            self._end_worker("the worker ended while it opened the driver")
            self._down("worker_failed")
            return
        if reply.failed is not None:
            self._end_worker()
            self._down(code_name(reply.failed))
            return
        facts = DriverFacts(**reply.values["driver"])
        if self._facts is None or facts.device_count != self._facts.device_count:
            self._suspects.clear()  # the indexes may mean other cards now
        self._outage.recovered("the driver answers", version=facts.driver_version, devices=facts.device_count)
        self._facts, self._reason = facts, "ok"
        self._due = {}
        self._excluded = set()
        self._inventory.reset_indexes()

    def _read(self, worker: Worker, now: float) -> None:
        """Ask for all cards at once and take the answers one by one: the first that does not come names the card."""
        assert self._facts is not None
        due = self._due_groups(now)
        indexes = [i for i in range(self._facts.device_count) if i not in self._excluded and self._may_read(i, now)]
        indexes.sort(key=lambda i: i in self._suspects)  # neighbours first
        current: int | None = None
        try:
            numbers = [(i, worker.send("read", index=i, groups=self._groups(i, due))) for i in indexes]
            for index, number in numbers:
                current = index
                reply = worker.receive(number, self._pace.deadline)
                if reply.failed in LIFECYCLE:
                    self._queue(index, reply)  # it may carry the event that says why
                    self._end_worker()
                    self._down(code_name(reply.failed or 0))
                    return
                self._accept(index, reply)
        except (WorkerHangsError, WorkerGoneError) as error:
            if not self._stop.is_set():
                self._end_worker(f"the worker failed while it read card {current}: {error}", polite=False)
                self._suspect(current, hangs=isinstance(error, WorkerHangsError))
                self._restarts += 1
                self._retry_at, self._backoff = now + self._backoff, min(60.0, max(0.5, self._backoff * 2))
            return
        self._backoff = 0.0
        self._inventory.expect_only(set(indexes))

    def _due_groups(self, now: float) -> list[Group]:
        due = [group for group in self._pace.intervals if now >= self._due.get(group, 0.0)]
        for group in due:
            # A quarter of an interval early is on time: ticks jitter, and a late read would shift all that follow.
            self._due[group] = now + 0.75 * self._pace.intervals[group]
        return due

    def _groups(self, index: int, due: list[Group]) -> list[Group]:
        """A card that this worker has not identified yet is read whole."""
        return due if self._inventory.uuid(index) else ["static", *self._pace.intervals]

    def _accept(self, index: int, reply: Reply) -> None:
        self._suspects.pop(index, None)
        uuid = reply.values.get("static", {}).get("uuid")
        if uuid and not self._allowed(index, uuid):
            self._excluded.add(index)
            return
        self._inventory.apply(reply, time.monotonic())
        self._queue(index, reply)

    def _queue(self, index: int, reply: Reply) -> None:
        self._replies.append(replace(reply, uuid=self._inventory.uuid(index) or "", received=time.monotonic()))

    def _may_read(self, index: int, now: float) -> bool:
        suspect = self._suspects.get(index)
        return suspect is None or now >= suspect.until

    def _suspect(self, index: int | None, *, hangs: bool) -> None:
        """Leave a card out that hung, or that was being read when the worker ended for the second time in a row."""
        if index is None:
            return
        suspect = self._suspects.setdefault(index, _Suspect())
        suspect.failures += 1
        if not hangs and suspect.failures < 2:
            return
        wait = min(600.0, 15.0 * 2**suspect.failures)
        suspect.until = time.monotonic() + wait
        uuid = self._inventory.uuid(index)
        if uuid:
            self._inventory.fail(uuid, "hangs" if hangs else "crashes_worker")
        log.warning("a card is left out", extra=fields(index=index, uuid=uuid, retry_seconds=wait))

    def _end_worker(self, sentence: str = "", *, polite: bool = True) -> None:
        worker, self._worker = self._worker, None
        assert worker is not None
        if not worker.end(polite=polite):
            self._unreaped.append(worker)
        if sentence:
            log.warning(sentence, extra=fields(worker=worker.ending(), pid=worker.pid))

    def _down(self, reason: str, **more: object) -> None:
        """Nothing can be read: say so once, drop all readings, try again with back-off."""
        self._outage.failing(ADVICE.get(reason, f"the driver says {reason}"), reason=reason, **more)
        self._reason, self._facts = reason, None
        self._backoff = min(60.0, max(1.0, self._backoff * 2))
        self._retry_at = time.monotonic() + self._backoff
        self._inventory.reset_indexes()
        self._inventory.expect_only(set())

    def _publish(self) -> None:
        self._unreaped = [w for w in self._unreaped if not w.reaped()]
        self._view = DriverView(
            up=self._reason == "ok",
            reason=self._reason,
            facts=self._facts,
            devices=self._inventory.devices(time.monotonic()),
            worker_starts=self._starts,
            worker_restarts=self._restarts,
            workers_unkillable=len(self._unreaped),
            worker_pid=self._worker.pid if self._worker else None,
        )
