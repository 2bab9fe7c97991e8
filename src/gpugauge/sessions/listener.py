"""The listener for hooks: a Unix seqpacket socket on which each connection is the lease of one session.

One thread reads the socket. Other threads get frozen sessions and never wait for a training process.
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
from typing import Any

from gpugauge.logline import fields
from gpugauge.sessions import ends
from gpugauge.sessions.connection import Connection, RejectedError, listen
from gpugauge.sessions.session import REJECTION_REASONS, SESSION_END_REASONS, Counters, Session
from gpugauge.wire import messages as wire

log = logging.getLogger(__name__)

HELLO_TIMEOUT_SECONDS = 10.0  # a connection without hello is closed after this time
SWEEP_INTERVAL_SECONDS = 1.0  # between two sweeps of shared records, ended sessions and silent connections
REJECTION_LOG_INTERVAL_SECONDS = 60.0  # between two log lines for the same user and reason


class SessionsError(Exception):
    """The socket cannot be opened, or the thread that reads it has ended. The text states the reason."""


class Sessions:
    """The listener on `path` between start() and stop(). Any thread may call view() and counters()."""

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
        # Often all containers run as root, so a limit per user does not protect one container from another.
        self._max_by_owner = {"user": max_connections_per_user, "cgroup": max_connections_per_cgroup}
        self._max_rate = max_rate
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._endings: list[ends.Ending] = []  # of sessions without connection, whose reason is not settled
        self._count_by_owner: Counter[tuple[str, str]] = Counter()
        self._next_log: dict[tuple[int, str], float] = {}  # by uid and reason, monotonic time
        self._thread: threading.Thread | None = None
        self._inode: int | None = None
        self._swept = time.monotonic()
        # The lock guards the fields below: the thread writes, every thread reads.
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._expiry: dict[str, float] = {}  # ended sessions, oldest first, by monotonic time
        self._view: tuple[Session, ...] | None = ()
        self._rejected = dict.fromkeys(REJECTION_REASONS, 0)
        self._ended = dict.fromkeys(SESSION_END_REASONS, 0)
        self._counters: Counters | None = None

    def start(self, listener: socket.socket | None = None) -> None:
        """Open the socket and start the thread. Raises SessionsError if the path is in use or not accessible.

        A `listener` opened by the service manager is used as it is; stop() does not remove its path.
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
        """Close everything and remove the socket, unless another daemon has replaced it. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._wake.close()
        thread.join(timeout=5)
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        for ending in self._endings:
            ending.close()
        self._selector.close()
        self._listener.close()
        self._woken.close()
        with contextlib.suppress(OSError):  # already removed
            if self._inode is not None and self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def view(self) -> tuple[Session, ...]:
        """Return all sessions, including those that ended recently; the same object if nothing has changed.

        Raises SessionsError if the thread has ended with an error.
        """
        if self._thread is not None and not self._thread.is_alive():
            raise SessionsError("the thread that reads the hook's socket has ended")
        with self._lock:
            if self._view is None:
                self._view = tuple(self._sessions.values())
            return self._view

    def counters(self) -> Counters:
        """Return the counts of rejections and ends; the same object if nothing has changed."""
        with self._lock:
            if self._counters is None:
                self._counters = Counters(dict(self._rejected), dict(self._ended))
            return self._counters

    def _run(self) -> None:
        while self._run_turn():
            pass

    def _run_turn(self) -> bool:
        try:
            # Without connections and ended sessions there is nothing to sweep.
            return self._turn(SWEEP_INTERVAL_SECONDS if self._connections or self._expiry else None)
        except MemoryError:  # memory may be available in a moment; unread messages stay in the queue
            time.sleep(0.1)
            return True

    def _turn(self, seconds: float | None) -> bool:
        """Serve the sockets that become ready within `seconds` (None: no limit), and sweep if it is time. Return False
        after stop().
        """
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(key.data)
        if time.monotonic() - self._swept >= SWEEP_INTERVAL_SECONDS:
            self._swept = time.monotonic()
            self._sweep(self._swept)
        return True

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors: the connection stays in the queue, and without a pause the loop would spin.
            self._reject("connections", 0, error.strerror or "accept failed")
            time.sleep(0.1)
            return
        sock.setblocking(False)
        connection = Connection(sock, self._max_rate)
        owners = connection.owners.items()
        full = [k for k, name in owners if name and self._count_by_owner[k, name] >= self._max_by_owner[k]]
        if full or len(self._connections) >= self._max_connections:
            self._reject(
                "connections", connection.uid, f"the limit of connections by {(full or ['all'])[0]} is reached"
            )
            sock.close()
            return
        self._connections.add(connection)
        self._count_by_owner.update(owners)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection) -> None:
        """Read one message only, so that a busy client does not delay the others."""
        try:
            message = connection.receive()
            if message is None:
                self._end(connection)
            else:
                self._handle(connection, message)
        except BlockingIOError:
            pass
        except RejectedError as error:
            self._reject(error.reason, connection.uid, str(error))
            self._close(connection, "rejected")

    def _handle(self, connection: Connection, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._open_session(connection, message)
            return
        if message.session != connection.session:
            raise RejectedError("malformed", "a connection begins with hello and has one session")
        if isinstance(message, wire.Bye):
            connection.end(message.reason)
            return
        connection.bye = None  # the process continues: the program that was to replace it could not be started
        connection.read_record()  # its phase and the counts of the message are of one time
        with self._lock:
            self._update(message.session, snap=message, record=connection.record)

    def _update(self, name: str, **changes: Any) -> None:
        self._sessions[name] = replace(self._sessions[name], **changes)
        self._view = None

    def _open_session(self, connection: Connection, hello: wire.Hello) -> None:
        known = self._sessions.get(hello.session)
        if connection.session is not None or (known and (known.connected or known.peer_uid != connection.uid)):
            raise RejectedError("malformed", "hello is sent once, with a session that no other connection has")
        connection.session = hello.session
        with self._lock:
            # After a broken connection the same process continues its session.
            self._expiry.pop(hello.session, None)
            snap, connection.record = (known.snap, known.record) if known else (None, None)
            connection.read_record()
            self._sessions[hello.session] = Session(
                hello, connection.pid, connection.uid, snap, record=connection.record
            )
            self._view = None

    def _end(self, connection: Connection) -> None:
        """Close a connection that its process has closed. Its reason is settled now or at a later sweep."""
        if connection.session is None:
            self._close(connection, "")
            return
        ending = connection.ending()
        if len(self._endings) >= self._max_connections:
            ending.close()
        reason = ending.reason()
        if not reason:
            self._endings.append(ending)
        self._close(connection, reason)

    def _settle(self, ending: ends.Ending) -> bool:
        """Count the end of a session once its reason is settled; return whether it is."""
        reason, name = ending.reason(), ending.session
        if not reason:
            return False
        with self._lock:
            session = self._sessions.get(name)
            if session is not None and not session.connected and not session.end_reason:
                self._update(name, end_reason=reason)
            self._ended[reason] += 1
            self._counters = None
        return True

    def _close(self, connection: Connection, reason: str) -> None:
        """Close a connection; `reason` is that of the end of its session, empty while it is not settled."""
        self._selector.unregister(connection.sock)
        connection.read_record()
        connection.close()
        self._connections.remove(connection)
        self._count_by_owner.subtract(connection.owners.items())
        self._count_by_owner += Counter()  # drops zero counts
        if connection.session is None:
            return
        with self._lock:
            self._update(connection.session, ended_at=time.time(), end_reason=reason, record=connection.record)
            self._expiry[connection.session] = time.monotonic() + self.linger_seconds
            if reason:
                self._ended[reason] += 1
                self._counters = None

    def _sweep(self, now: float) -> None:
        """Read the shared records; drop sessions that ended `linger_seconds` ago, or the oldest if there are too many;
        close connections without hello.
        """
        with self._lock:
            for connection in self._connections:
                if connection.session is not None and connection.read_record():
                    self._update(connection.session, record=connection.record)
            while self._expiry:
                oldest = next(iter(self._expiry))
                if self._expiry[oldest] > now and len(self._expiry) <= self._max_connections:
                    break
                del self._expiry[oldest], self._sessions[oldest]
                self._view = None
        self._endings = [ending for ending in self._endings if not self._settle(ending)]
        silent = [c for c in self._connections if c.session is None and now - c.opened > HELLO_TIMEOUT_SECONDS]
        for connection in silent:
            self._reject("silent", connection.uid, f"no hello within {HELLO_TIMEOUT_SECONDS:g} seconds")
            self._close(connection, "rejected")

    def _reject(self, reason: str, uid: int, detail: str) -> None:
        with self._lock:
            self._rejected[reason] += 1
            self._counters = None
        now = time.monotonic()
        if now >= self._next_log.get((uid, reason), now):
            self._next_log[uid, reason] = now + REJECTION_LOG_INTERVAL_SECONDS
            log.warning("hook connection closed: %s", detail, extra=fields(reason=reason, uid=uid))
