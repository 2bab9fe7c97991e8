"""The receiver in use. It is replaced if it ends, hangs, or asks for it."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpugauge.base.logline import Condition, fields
from gpugauge.sessions.ends import MOUNT
from gpugauge.sessions.intake import Datagram, Intake
from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.receiver.closing import MAX_THREADS
from gpugauge.sessions.store import Store
from gpugauge.workload import cgroup

_OWN = Path("/proc/self/cgroup")


def free_tasks(own: Path = _OWN, mount: Path = MOUNT) -> float:
    """Return how many more tasks are allowed; infinity without a limit, or where it cannot be read."""
    try:
        folder = cgroup.directory(own.read_text(), mount, "pids") or mount
        limit, current = ((folder / name).read_text().strip() for name in ("pids.max", "pids.current"))
    except OSError:  # the root of the hierarchy has no limit
        return math.inf
    return math.inf if limit == "max" else int(limit) - int(current)


log = logging.getLogger(__name__)

STUCK_SECONDS = 3.0  # without a word from the receiver, which reports every second unless it rests
REPORT_SECONDS = 300.0  # a replaced receiver is reported for this long
# A receiver that hangs inside the kernel keeps its threads, 17 with the main one, until the kernel lets them end. At
# most so many are left behind, because the unit limits the tasks of all its processes (TasksMax=).
_MAX_ABANDONED = 4
_RECEIVER_TASKS = MAX_THREADS + 1
_SPARE_TASKS = 16


class Reception:
    """Keeps a receiver running. `lose` is called when one is given up, before its connections are closed."""

    def __init__(
        self, path: Path, options: p.Options, selector: selectors.BaseSelector, store: Store, lose: Callable[[], None]
    ) -> None:
        self._path, self._options, self._selector, self._store, self._lose = path, options, selector, store, lose
        self._inherited: socket.socket | None = None
        self._intake: Intake | None = None
        self._abandoned: list[Intake] = []  # replaced, and perhaps not yet ended
        self._bans: dict[bytes, float] = {}  # by uid and cgroup as the receiver sends them: monotonic time of the end
        self._failure, self._kept = Condition(log), Condition(log)
        self._trouble = ("", 0.0)  # a sentence, and the monotonic time at which it was true
        self._retry_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process id of the receiver, None while there is none."""
        intake = self._intake
        return intake.pid if intake else None

    def start(self, inherited: socket.socket | None) -> None:
        """Start the first receiver. Raises OSError."""
        self._inherited = inherited
        self._adopt(Intake(self._path, self._options, inherited))

    def stop(self) -> None:
        """End the receiver."""
        intake, self._intake = self._intake, None
        if intake is not None:
            intake.end()
        if self._inherited is not None:
            self._inherited.close()  # the service manager has it, too

    def trouble(self) -> str:
        """Return a sentence if the receiver was replaced in the last minutes, "" otherwise."""
        sentence, at = self._trouble
        return sentence if sentence and time.monotonic() - at < REPORT_SECONDS else ""

    def rest(self) -> float:
        """Return the seconds for which the receiver reports nothing, because nobody is connected; usually 0."""
        return p.REST_SECONDS if self._intake and self._intake.resting else 0.0

    def receive(self) -> Iterator[Datagram]:
        """Yield the datagrams that have arrived."""
        return self._intake.receive() if self._intake else iter(())

    def command(self, kind: int, number: int) -> None:
        """Send a command to the receiver."""
        if self._intake is not None:
            self._intake.command(kind, number)

    def handle(self, kind: int, body: bytes) -> None:
        """Handle what the receiver reports about itself."""
        if kind == p.ALIVE:
            self._store.ban(p.STATE.unpack(body)[2])
        elif kind == p.BANNED:
            uid, seconds = p.BAN_BODY.unpack_from(body)
            self._bans[body] = time.monotonic() + seconds
            cgroup = body[p.BAN_BODY.size :].decode(errors="replace")
            sentence = "closing a descriptor that a process has passed to the hook's socket blocks: its user is banned"
            log.warning(sentence, extra=fields(uid=uid, cgroup=cgroup, seconds=seconds))
        elif kind == p.REOPENED:
            log.warning(body.decode(errors="replace"), extra=fields(path=self._path))
        elif kind == p.REPLACE:
            self._relieve()
        elif kind == p.FAILED:
            log.error("the receiver failed: %s", body.decode(errors="replace"))

    def watch(self) -> None:
        """Replace a receiver that has ended or hangs."""
        now = time.monotonic()
        if self._intake is None:
            if now >= self._retry_at:
                self._succeed()
        elif self._intake.ended:
            self._replace("ended")
        elif now - self._intake.received_at > STUCK_SECONDS + self.rest():
            self._replace("stuck")

    def _relieve(self) -> None:
        """Replace a receiver that can close nothing more; it stays where another one that does not end is too many."""
        if self._left_behind() >= _MAX_ABANDONED or free_tasks() < _RECEIVER_TASKS + _SPARE_TASKS:
            self._kept.failing("closing blocks in too many receivers: this one stays, and closes nothing more")
        else:
            self._kept.recovered("a receiver that cannot close is replaced again")
            self._replace("blocked")

    def _left_behind(self) -> int:
        self._abandoned = [intake for intake in self._abandoned if not intake.reaped()]
        return len(self._abandoned)

    def _replace(self, reason: str) -> None:
        """Start another receiver, and then end this one. Sessions go on: their processes connect again."""
        before, self._intake = self._intake, None
        if before is None:
            return
        self._selector.unregister(before.channel)
        self._store.replace(reason)
        self._trouble = (f"the receiver of training processes was replaced ({reason})", time.monotonic())
        log.warning("the receiver is replaced", extra=fields(reason=reason, pid=before.pid))
        self._lose()
        self._abandoned.append(before)
        self._succeed()
        # One that got no CPU time still ends its connections. Threads that hang would keep them open.
        before.end(graceful=reason != "ended")

    def _succeed(self) -> None:
        self._retry_at = time.monotonic() + STUCK_SECONDS
        if self._left_behind() > _MAX_ABANDONED:
            self._fail("too many receivers before it have not ended")
            return
        try:
            self._adopt(Intake(self._path, self._options, self._inherited))
        except OSError as error:
            self._fail(error.strerror or str(error))
        else:
            self._failure.recovered("the receiver of training processes is started")

    def _fail(self, reason: str) -> None:
        self._failure.failing("the receiver of training processes cannot be started", error=reason)
        self._trouble = (f"training processes cannot report: {reason}", time.monotonic())

    def _adopt(self, intake: Intake) -> None:
        self._intake = intake
        self._selector.register(intake.channel, selectors.EVENT_READ)
        now = time.monotonic()
        self._bans = {body: until for body, until in self._bans.items() if until > now}
        for body, until in self._bans.items():
            uid, _ = p.BAN_BODY.unpack_from(body)
            intake.command(p.BAN, 0, p.BAN_BODY.pack(uid, until - now) + body[p.BAN_BODY.size :])
