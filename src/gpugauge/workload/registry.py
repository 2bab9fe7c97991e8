"""Who the processes are that the collectors read. One thread asks for each process, for all collectors that read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from gpugauge.base import guard
from gpugauge.base.guard import Loop
from gpugauge.workload.identity import Workload

DeviceNames: TypeAlias = tuple[tuple[str, ...], ...]  # of several devices

# A process is asked for again after this time, though nothing has changed: its pod then counts as held.
_AGAIN_SECONDS = 60.0
# One that takes longer is set aside, and its thread replaced, unless so many are set aside already.
_HANGING_SECONDS, _MAX_ASIDE = 2.0, 2


class Want(NamedTuple):
    """A process that a caller reads. `pid` is 0 if /proc does not show it; a `start` of None is read. `sent` are facts
    that its hook sent. `devices` has the names (`identity.device_names`) of each device that it uses, by which a pod is
    known whose name is in no log folder.
    """

    pid: int
    start: int | None = None
    devices: DeviceNames = ()
    sent: Mapping[str, str] | None = None


class Identity(NamedTuple):
    """Who a process is, as far as that is known."""

    workload: Workload = Workload()
    container_pid: int | None = None


class Registry:
    """Identities by `process`. Thread-safe. `ask` may hang; the number `version` is another when any may be."""

    def __init__(self, ask: Callable[[Want], Identity], version: Callable[[], int], now: Callable[[], float]) -> None:
        self._ask, self._version, self._now = ask, version, now
        self._wants: dict[str, Mapping[str, Want]] = {}  # by caller
        self._asked: dict[str, tuple[Want, int, float]] = {}  # with the version, and the time
        self._known: dict[str, Identity] = {}
        self._due: dict[str, Want] = {}
        self._asking: dict[str, tuple[Loop | None, float]] = {}  # also those that are set aside
        self._thread: Loop | None = None
        self._news = threading.Condition()

    def get(self, process: str) -> Identity | None:
        """Return who a process is, None while that is not known."""
        return self._known.get(process)

    def want(self, caller: str, wants: Mapping[str, Want]) -> None:
        """Replace the processes that a caller reads, and wait, up to START_WAIT_SECONDS, until those that are new, or
        may be others now, are known. One that several callers want uses the devices that any of them names.
        """
        version, now = self._version(), self._now()
        with self._news:
            self._wants[caller] = wants
            for process in self._asked.keys() - {process for each in self._wants.values() for process in each}:
                del self._asked[process]
                self._known.pop(process, None)
                self._due.pop(process, None)
            before = len(self._due)
            for process in wants:
                every = [each[process] for each in self._wants.values() if process in each]
                devices = tuple(dict.fromkeys(device for want in every for device in want.devices))
                want = max(every, key=lambda want: want.sent is not None)._replace(devices=devices)
                is_named = self._known.get(process, Identity()).workload.job
                asked, at, since = self._asked.get(process, (None, 0, now))
                is_new = not is_named or (asked, at) != (want, version) or now - since >= _AGAIN_SECONDS
                if is_new and process not in self._asking:
                    self._asked[process], self._due[process] = (want, version, now), want
            self._replace_thread()
            if len(self._due) > before:
                self._news.notify_all()
                self._news.wait_for(
                    lambda: not self._due and all(thread is not self._thread for thread, _ in self._asking.values()),
                    guard.START_WAIT_SECONDS,
                )

    def _replace_thread(self) -> None:
        """Start a thread if there is none, or if that of now hangs."""
        hanging = [thread for thread, since in self._asking.values() if time.monotonic() - since > _HANGING_SECONDS]
        for thread in filter(None, hanging):
            thread.guard.record(TimeoutError("a process hangs inside the kernel, its labels are missing"))
        if self._thread is None or (self._thread in hanging and len(hanging) <= _MAX_ASIDE):
            thread = Loop("registry", self._turn)
            thread.begin()
            if self._thread:
                self._thread.stopping.set()
            self._thread = thread

    def _turn(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._due)
            process = next(iter(self._due))
            want, self._asking[process] = self._due.pop(process), (self._thread, time.monotonic())
        found = None
        try:
            found = self._ask(want)
        finally:
            with self._news:
                del self._asking[process]
                # The workload of a process that has just ended is empty.
                if found and found not in (Identity(), self._known.get(process)) and process in self._asked:
                    self._known[process] = found
                self._news.notify_all()
