"""The daemon's ear for the hooks: a Unix seqpacket socket, where each connection is the lease of one session.

A thread of its own reads the socket. What others see are frozen sessions; they never wait for a training process.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from gpugauge.logline import fields
from gpugauge.sessions.connection import Connection, RejectedError, listen
from gpugauge.sessions.session import ENDS, REJECTIONS, Counters, Session
from gpugauge.wire import messages as wire

log = logging.getLogger(__name__)

HELLO_SECONDS = 10.0  # a connection that has not said who it is by then is closed
SWEEP_SECONDS = 1.0  # how often ended sessions and silent connections are looked at
QUIET_SECONDS = 60.0  # a user whose messages are rejected for one reason is named in the log this often at most


class SessionsError(Exception):
    """The socket cannot be opened, or the thread that reads it has ended; the text says why."""


class Sessions:
    """Listens on `path` between start() and stop(); view() and counters() may be called from any thread."""

    def __init__(
        self,
        path: str,
        *,
        mode: int = 0o666,
        linger_seconds: float = 300.0,
        max_connections: int = 2048,
        max_connections_per_user: int = 1536,
        max_connections_per_cgroup: int = 1024,
        max_rate: float = 10.0,
    ) -> None:
        self.path = Path(path)
        self._mode = mode
        self.linger_seconds = linger_seconds
        self._max_connections = max_connections
        # Containers are often all of one user, root: none of them may take the places of the others.
        self._most = {"user": max_connections_per_user, "cgroup": max_connections_per_cgroup}
        self._max_rate = max_rate
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._held: Counter[tuple[str, str]] = Counter()  # connections by owner
        self._warned: dict[tuple[int, str], float] = {}
        self._thread: threading.Thread | None = None
        self._inode: int | None = None
        self._swept = time.monotonic()
        # The lock guards what follows: the thread writes, anybody reads.
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._expiry: dict[str, float] = {}  # ended sessions, oldest first, by monotonic time
        self._view: tuple[Session, ...] | None = ()
        self._rejected = dict.fromkeys(REJECTIONS, 0)
        self._ended = dict.fromkeys(ENDS, 0)
        self._counters: Counters | None = None

    def start(self, listener: socket.socket | None = None) -> None:
        """Open the socket and begin to read; raises SessionsError when the path is taken or not ours to use.

        A `listener` that the service manager opened is taken as it is and left to it at the end.
        """
        if listener is not None:
            listener.setblocking(False)
            self._listener, self._inode = listener, None
        else:
            try:
                self._listener = listen(self.path, self._mode)
            except OSError as error:
                raise SessionsError(f"cannot listen on {self.path}: {error.strerror or error}") from None
            self._inode = self.path.stat().st_ino
        self._wake, woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._woken = woken
        self._thread = threading.Thread(target=self._run, name="gpugauge-sessions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close everything and remove the socket, unless another daemon has put its own in the place; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._wake.close()
        thread.join(timeout=5)
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._selector.close()
        self._listener.close()
        self._woken.close()
        with contextlib.suppress(OSError):  # gone already
            if self._inode is not None and self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def view(self) -> tuple[Session, ...]:
        """Return all sessions, those that ended a while ago included; the same object as before if nothing changed.

        Raises SessionsError when the thread has ended by an error.
        """
        if self._thread is not None and not self._thread.is_alive():
            raise SessionsError("the thread that reads the hook's socket has ended")
        with self._lock:
            if self._view is None:
                self._view = tuple(self._sessions.values())
            return self._view

    def counters(self) -> Counters:
        """Return what was rejected and what ended; the same object as before if nothing changed."""
        with self._lock:
            if self._counters is None:
                self._counters = Counters(dict(self._rejected), dict(self._ended))
            return self._counters

    def _run(self) -> None:
        while self._goes_on():
            pass

    def _goes_on(self) -> bool:
        try:
            # Where no training tells, there is nothing to sweep.
            return self._turn(SWEEP_SECONDS if self._connections or self._expiry else None)
        except MemoryError:  # there may be some in a moment; what was not read yet waits
            time.sleep(0.1)
            return True

    def _turn(self, seconds: float | None) -> bool:
        """Wait so long for something to serve, without end for None, and sweep when it is time; return False when told
        to stop.
        """
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(key.data)
        if time.monotonic() - self._swept >= SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._sweep(self._swept)
        return True

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors: the connection stays in the queue, so do not spin on it.
            self._reject("connections", 0, error.strerror or "accept failed")
            time.sleep(0.1)
            return
        sock.setblocking(False)
        connection = Connection(sock, self._max_rate)
        owners = connection.owners.items()
        full = [kind for kind, name in owners if name and self._held[kind, name] >= self._most[kind]]
        if full or len(self._connections) >= self._max_connections:
            self._reject(
                "connections", connection.uid, f"the limit of connections by {(full or ['all'])[0]} is reached"
            )
            sock.close()
            return
        self._connections.add(connection)
        self._held.update(owners)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection) -> None:
        """Take one message, so that a busy client does not hold up the others."""
        try:
            message = connection.receive()
            if message is None:
                self._close(connection, connection.bye or "killed")
            else:
                self._take(connection, message)
        except BlockingIOError:
            pass
        except RejectedError as error:
            self._reject(error.reason, connection.uid, str(error))
            self._close(connection, "rejected")

    def _take(self, connection: Connection, message: wire.Message) -> None:
        now = time.time()
        if isinstance(message, wire.Hello):
            self._greet(connection, message, now)
            return
        if message.session != connection.session:
            raise RejectedError("malformed", "a connection begins with hello and speaks for one session")
        if isinstance(message, wire.Bye):
            connection.bye = message.reason if message.reason in wire.END_REASONS else "other"
            return
        with self._lock:
            self._sessions[message.session] = replace(self._sessions[message.session], snap=message, received_at=now)
            self._view = None

    def _greet(self, connection: Connection, hello: wire.Hello, now: float) -> None:
        known = self._sessions.get(hello.session)
        if connection.session is not None or (known and (known.connected or known.peer_uid != connection.uid)):
            raise RejectedError("malformed", "hello comes once, with a session of one's own")
        connection.session = hello.session
        with self._lock:
            # A session that comes back (the connection was lost, not the process) goes on where it was.
            self._expiry.pop(hello.session, None)
            snap, connection.page = (known.snap, known.page) if known else (None, None)
            connection.look()
            self._sessions[hello.session] = Session(
                hello, connection.pid, connection.uid, now, snap, page=connection.page
            )
            self._view = None

    def _close(self, connection: Connection, reason: str) -> None:
        self._selector.unregister(connection.sock)
        connection.look()
        connection.close()
        self._connections.remove(connection)
        self._held.subtract(connection.owners.items())
        self._held += Counter()  # drops what is zero
        if connection.session is None:
            return
        with self._lock:
            session = self._sessions[connection.session]
            self._sessions[connection.session] = replace(
                session, ended_at=time.time(), end_reason=reason, page=connection.page
            )
            self._expiry[connection.session] = time.monotonic() + self.linger_seconds
            self._ended[reason] += 1
            self._view = self._counters = None

    def _sweep(self, now: float) -> None:
        """Read the pages; forget sessions that have lingered, the oldest first when they are many, and connections
        that say nothing.
        """
        with self._lock:
            for connection in self._connections:
                if connection.session is not None and connection.look():
                    session = self._sessions[connection.session]
                    self._sessions[connection.session] = replace(session, page=connection.page)
                    self._view = None
            while self._expiry:
                oldest = next(iter(self._expiry))
                if self._expiry[oldest] > now and len(self._expiry) <= self._max_connections:
                    break
                del self._expiry[oldest], self._sessions[oldest]
                self._view = None
        silent = [c for c in self._connections if c.session is None and now - c.opened > HELLO_SECONDS]
        for connection in silent:
            self._reject("silent", connection.uid, f"no hello within {HELLO_SECONDS:g} seconds")
            self._close(connection, "rejected")

    def _reject(self, reason: str, uid: int, detail: str) -> None:
        with self._lock:
            self._rejected[reason] += 1
            self._counters = None
        now = time.monotonic()
        if now >= self._warned.get((uid, reason), now):
            self._warned[uid, reason] = now + QUIET_SECONDS
            log.warning("connection of a hook closed: %s", detail, extra=fields(reason=reason, uid=uid))
