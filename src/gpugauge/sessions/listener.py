"""The listener for hooks: each connection is the lease of one session. A process of its own, the receiver, holds the
connections; one thread reads what it passes on, and replaces it if it ends or hangs.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from dataclasses import replace
from pathlib import Path

from gpugauge.base.guard import Loop
from gpugauge.base.logline import Occasions, fields
from gpugauge.sessions import ends
from gpugauge.sessions.budget import Budget
from gpugauge.sessions.connection import Connection, RejectedError, prepare
from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.reception import Reception
from gpugauge.sessions.session import REJECTION_REASONS, Counters, Session
from gpugauge.sessions.store import Store
from gpugauge.wire import messages as wire
from gpugauge.wire.decoding import decode
from gpugauge.wire.record import RECORD_BYTES
from gpugauge.workload.procfs import TICKS_PER_SECOND

# Start times in /proc are in ticks of 10 ms, and the two clocks here are not read at one instant.
_TOLERANCE_SECONDS = 1.0


def checked_start(claimed: float | None, pid: int) -> float | None:
    """Return the claimed Unix time if it is possible, otherwise the start by /proc/PID/stat; None without a claim."""
    if claimed is None:
        return None
    now, start = time.time(), ends.PROC.start_time(pid)
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    begin = None if start is None else now - max(0.0, since_boot - start / TICKS_PER_SECOND)
    earliest = 0.0 if begin is None else begin - _TOLERANCE_SECONDS
    if earliest <= claimed <= now + _TOLERANCE_SECONDS:
        return claimed
    return now if begin is None else begin


log = logging.getLogger(__name__)

SWEEP_INTERVAL_SECONDS = 1.0  # between two sweeps of shared records and ended sessions
REJECTION_LOG_INTERVAL_SECONDS = 60.0  # between two log lines for the same user and reason
LOST_SECONDS = 60.0  # in which a process that has no pid here connects again, after its receiver has ended
_MAX_LOGGED = 64  # users and reasons of which a line is logged in this time: a user may have a range of uids


class SessionsError(Exception):
    """The socket cannot be opened, or the thread that reads it has ended. The text states the reason."""


class Sessions:
    """The listener on `path` between start() and stop(). Any thread may call view() and counters()."""

    def __init__(
        self, path: str, *, linger_seconds: float = 300.0, budget: Budget | None = None, **limits: float
    ) -> None:
        self.path = Path(path)
        self._options = p.Options(**limits, message_bytes=wire.MAX_MESSAGE_BYTES, record_bytes=RECORD_BYTES)
        self._store = Store(linger_seconds, self._options.connections, budget or Budget())
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}  # of the receiver, by number
        self._lost: dict[str, Connection] = {}  # by session: of a receiver that has ended, not yet opened again
        self._kills = ends.MemoryKills()
        self._endings: list[ends.Ending] = []  # of sessions without connection, whose reason is not settled
        self._logged = Occasions(REJECTION_LOG_INTERVAL_SECONDS, _MAX_LOGGED)  # by uid and reason
        self._thread: Loop | None = None
        self._reception = Reception(self.path, self._options, self._selector, self._store, self._lose)
        self._swept = time.monotonic()

    @property
    def linger_seconds(self) -> float:
        """Time for which an ended session is kept."""
        return self._store.linger_seconds

    @linger_seconds.setter
    def linger_seconds(self, seconds: float) -> None:
        self._store.linger_seconds = seconds

    def start(self, listener: socket.socket | None = None) -> None:
        """Open the socket, unless the service manager has, and start the thread. Raises SessionsError."""
        try:
            if listener is None:
                prepare(self.path)
            self._reception.start(listener)
        except OSError as error:
            raise SessionsError(f"cannot listen on {self.path}: {error.strerror or error}") from None
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = Loop("gpugauge-sessions", self._run)
        self._thread.start()

    def stop(self) -> None:
        """Close everything and remove the socket, unless another daemon has replaced it. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.stopping.set()
        self._wake.close()
        thread.join(timeout=5)
        self._reception.stop()
        for connection in (*self._connections.values(), *self._lost.values()):
            connection.close()
        self._connections.clear()
        for ending in self._endings:
            ending.close()
        self._selector.close()
        self._woken.close()

    def view(self) -> tuple[Session, ...]:
        """Return all sessions; the same object if nothing has changed. Raises SessionsError while the thread fails."""
        if self._thread and (error := self._thread.guard.failing):
            raise SessionsError(f"reading the hook's socket fails: {error}")
        return self._store.view()

    def counters(self) -> Counters:
        """Return the counts of rejections and ends; the same object if nothing has changed."""
        return self._store.counters()

    def trouble(self) -> str:
        """Return a sentence if the receiver was replaced in the last minutes, "" otherwise."""
        return self._reception.trouble()

    def receiver_pid(self) -> int | None:
        """Return the process id of the receiver, None while there is none."""
        return self._reception.pid

    def _run(self) -> None:
        self._turn(max(SWEEP_INTERVAL_SECONDS, 0.0 if self._changes() else self._reception.rest()))

    def _turn(self, seconds: float) -> None:
        """Read what arrives within `seconds`, and sweep if it is time. After an error, unread messages stay queued."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._woken:
                return
            for datagram in self._reception.receive():
                self._handle(*datagram)
        now = time.monotonic()
        self._reception.watch()
        if now - self._swept >= SWEEP_INTERVAL_SECONDS:
            self._swept = now
            if self._changes():
                self._sweep(now)

    def _changes(self) -> bool:
        """Return whether sessions may change without a word from the receiver."""
        return bool(self._connections or self._lost or self._endings or self._store.lingering())

    def _handle(self, kind: int, number: int, body: bytes, descriptors: list[int]) -> None:
        connection = self._connections.get(number)
        if kind == p.MESSAGE and connection is not None:
            if descriptors:
                connection.attach(descriptors.pop(0))
            self._serve(connection, body)
        elif kind == p.OPENED:
            self._connections[number] = Connection(number, body)
        elif kind == p.ENDED and connection is not None:
            del self._connections[number]
            self._end(connection, body.decode(), descriptors.pop(0) if descriptors else None)
        elif kind == p.REJECTED:
            uid, count = p.REFUSED.unpack_from(body)
            reason, _, detail = body[p.REFUSED.size :].decode(errors="replace").partition("\0")
            self._reject(reason, uid, detail, count)
        else:
            self._reception.handle(kind, body)
        for descriptor in descriptors:
            os.close(descriptor)

    def _lose(self) -> None:
        """Keep the sessions of a receiver that is replaced: their processes connect again."""
        for connection in self._connections.values():
            if connection.session is None:
                connection.close()
            else:
                connection.lost_at = time.monotonic()
                self._lost[connection.session] = connection
        self._connections.clear()

    def _serve(self, connection: Connection, data: bytes) -> None:
        try:
            self._read(connection, data)
        except RejectedError as error:
            self._reject(error.reason, connection.uid, str(error))
            self._reception.command(p.CLOSE, connection.number)
            del self._connections[connection.number]
            self._close(connection, "rejected")

    def _read(self, connection: Connection, data: bytes) -> None:
        try:
            message = decode(data)
        except wire.WireError as error:
            raise RejectedError(error.reason, str(error)) from None
        if isinstance(message, wire.Hello):
            started = checked_start(message.started, connection.pid)
            self._open_session(connection, replace(message, started=started))
            return
        if message.session != connection.session:
            raise RejectedError("malformed", "a connection begins with hello and has one session")
        if isinstance(message, wire.Bye):
            connection.end(message.reason)
            return
        if isinstance(message, wire.Answer):
            connection.inquirer.take(message, time.time())
            return
        connection.inquirer.answers = bool(message.answers)
        connection.bye = None  # the process continues: the program that was to replace it could not be started
        connection.read_record()  # its phase and the counts of the message are of one time
        self._store.update(connection, message)

    def _open_session(self, connection: Connection, hello: wire.Hello) -> None:
        known, lost = self._store.known(hello.session), self._lost.get(hello.session)
        taken = known is not None and (known.peer_uid != connection.uid or (known.connected and lost is None))
        if lost is not None and (lost.pid, lost.start) != (connection.pid, connection.start):
            taken = True
        if connection.session is not None or taken:
            raise RejectedError("malformed", "hello is sent once, with a session that no other connection has")
        if lost is not None:
            self._lost.pop(hello.session).close()
        connection.session, connection.memory = hello.session, self._kills.watch(connection.pid)
        self._store.open(connection, hello)

    def _end(self, connection: Connection, rejected: str, pidfd: int | None) -> None:
        """End a connection that its process or the receiver has closed; its reason is settled now or later."""
        if connection.session is None or rejected:
            if pidfd is not None:
                os.close(pidfd)
            self._close(connection, "rejected")
            return
        ending = connection.ending(pidfd, for_memory=self._killed(connection))
        if len(self._endings) >= self._options.connections:
            ending.close()
        reason = ending.reason()
        if not reason:
            self._endings.append(ending)
        self._close(connection, reason, ending.status)

    def _close(self, connection: Connection, reason: str, status: int | None = None) -> None:
        """Close a connection; `reason` is that of the end of its session, empty while it is not settled."""
        connection.read_record()
        connection.close()
        self._store.close(connection, reason, status)

    def _sweep(self, now: float) -> None:
        """Read the shared records, drop old sessions, and end those whose process is gone or did not come back."""
        connections = (*self._connections.values(), *self._lost.values())
        self._store.sweep(connections, now)
        for connection in self._connections.values():
            if connection.asks(now):
                self._reception.command(p.ASK, connection.number)
        self._kills.read((connection.memory for connection in connections), now)
        settled = [(ending, ending.reason()) for ending in self._endings]
        self._endings = [ending for ending, reason in settled if not reason]
        for ending, reason in settled:
            if reason:
                self._store.settle(ending.session, reason, ending.status)
        for name, connection in list(self._lost.items()):
            alive = connection.alive()
            if alive is False or (alive is None and now - (connection.lost_at or now) > LOST_SECONDS):
                del self._lost[name]
                self._close(connection, ends.reason(connection.bye, None, for_memory=self._killed(connection)))

    def _killed(self, connection: Connection) -> bool:
        """Return whether the kernel has killed the process for memory, without time for a last message."""
        return connection.bye is None and self._kills.claim(connection.memory)

    def _reject(self, reason: str, uid: int, detail: str, count: int = 1) -> None:
        self._store.reject(reason if reason in REJECTION_REASONS else "malformed", count)
        if self._logged.allows((uid, reason)):
            user = "many" if uid == p.MANY_USERS else uid
            log.warning("hook connection closed: %s", detail, extra=fields(reason=reason, uid=user))
