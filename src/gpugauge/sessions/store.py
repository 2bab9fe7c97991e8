"""The sessions and the counters. The thread of the listener writes, every thread reads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gpugauge.base.logline import Occasions, fields
from gpugauge.sessions.budget import NOTHING, WHOLE, Budget, series_of
from gpugauge.sessions.connection import Connection
from gpugauge.sessions.session import REJECTION_REASONS, SESSION_END_REASONS, Counters, Session
from gpugauge.wire import messages as wire

log = logging.getLogger(__name__)

_LOG_INTERVAL_SECONDS = 600.0  # between two log lines for the same user and limit
_MAX_LOGGED = 64  # in this time: a user may have a range of uids


class Store:
    """Sessions by name, ended ones for `linger_seconds`. Those over the `budget` have no details, or are not shown."""

    def __init__(self, linger_seconds: float, max_ended: int, budget: Budget) -> None:
        self.linger_seconds, self._max_ended, self._budget = linger_seconds, max_ended, budget
        self._hidden: set[str] = set()
        self._logged = Occasions(_LOG_INTERVAL_SECONDS, _MAX_LOGGED)  # by limit and uid
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._expiry: dict[str, float] = {}  # ended sessions, oldest first, by monotonic time
        self._view: tuple[Session, ...] | None = ()
        self._counters = Counters(dict.fromkeys(REJECTION_REASONS, 0), dict.fromkeys(SESSION_END_REASONS, 0))

    def view(self) -> tuple[Session, ...]:
        """Return all sessions; the same object if nothing has changed."""
        with self._lock:
            if self._view is None:
                self._view = tuple(s for name, s in self._sessions.items() if name not in self._hidden)
            return self._view

    def counters(self) -> Counters:
        """Return the counts; the same object if nothing has changed."""
        return self._counters

    def lingering(self) -> bool:
        """Return whether there are ended sessions."""
        return bool(self._expiry)

    def known(self, name: str) -> Session | None:
        """Return a session."""
        return self._sessions.get(name)

    def open(self, connection: Connection, hello: wire.Hello) -> None:
        """Begin a session, or continue it after a broken connection of the same process."""
        known = self.known(hello.session)
        with self._lock:
            self._expiry.pop(hello.session, None)
            self._place(hello.session, connection, known.snap if known else None)
            snap, connection.record = (known.snap, known.record) if known else (None, None)
            connection.thread.seconds = known.thread if known else {}
            connection.read_record()
            opened = Session(hello, connection.pid, connection.uid, snap, peer_start=connection.start)
            self._sessions[hello.session] = opened
            self._update(hello.session, connection)

    def update(self, connection: Connection, snap: wire.Snap) -> None:
        """Set the last message of a session, as far as the budget allows."""
        with self._lock:
            if self._place(snap.session, connection, snap) != WHOLE:
                snap = replace(snap, parameters=(), optimizer_state=(), devices=(), loader=None, groups=())
            self._update(snap.session, connection, snap=snap)

    def close(self, connection: Connection, reason: str, status: int | None = None) -> None:
        """End the session of a connection; `reason` is empty while it is not settled, `status` the exit status."""
        if connection.session is None:
            return
        with self._lock:
            if connection.session in self._hidden:
                self._drop(connection.session)
            else:
                end = {"ended_at": time.time(), "end_reason": reason, "end_status": status}
                self._update(connection.session, connection, **end)
                self._expiry[connection.session] = time.monotonic() + self.linger_seconds
            if reason:
                self._count("ended", reason)

    def settle(self, name: str, reason: str, status: int | None = None) -> None:
        """Set and count the reason for the end of a session, and set its exit status."""
        with self._lock:
            session = self._sessions.get(name)
            if session is not None and not session.connected and not session.end_reason:
                self._update(name, end_reason=reason, end_status=status)
            self._count("ended", reason)

    def sweep(self, connections: Collection[Connection], now: float) -> None:
        """Read the shared records; drop sessions that ended `linger_seconds` ago, or the oldest of too many."""
        with self._lock:
            for connection in connections:
                if connection.session is not None and connection.read_record():
                    self._update(connection.session, connection)
            while self._expiry:
                oldest = next(iter(self._expiry))
                if self._expiry[oldest] > now and len(self._expiry) <= self._max_ended:
                    break
                self._drop(oldest)

    def reject(self, reason: str, count: int) -> None:
        """Count closed connections."""
        with self._lock:
            self._count("rejected", reason, count)

    def replace(self, reason: str) -> None:
        """Count a replaced receiver."""
        with self._lock:
            self._count("replaced", reason)
            self._counters = replace(self._counters, replaced_at=time.time())

    def ban(self, count: int) -> None:
        """Set the number of bans in force."""
        if count != self._counters.banned:
            with self._lock:
                self._counters = replace(self._counters, banned=count)

    def _place(self, name: str, connection: Connection, snap: wire.Snap | None) -> str:
        """Return the part of a session that the budget allows. The caller holds the lock."""
        before = self._budget.limit(name)
        series = series_of(snap, len(connection.thread.seconds))
        place = self._budget.place(name, connection.uid, connection.cgroup, series)
        if place.level == NOTHING:
            self._hidden.add(name)
        else:
            self._hidden.discard(name)
        if place.limit and place.limit != before:
            self._count("cut", place.limit)
            if self._logged.allows((place.limit, connection.uid)):
                sentence = f"series of training processes are cut: the limit of series by {place.limit} is reached"
                log.warning(sentence, extra=fields(uid=connection.uid, cgroup=connection.cgroup))
        return place.level

    def _drop(self, name: str) -> None:
        self._expiry.pop(name, None)
        del self._sessions[name]
        self._hidden.discard(name)
        self._budget.release(name)
        self._view = None

    def _count(self, kind: str, key: str, count: int = 1) -> None:
        counts: dict[str, int] = getattr(self._counters, kind)
        changed: dict[str, Any] = {kind: {**counts, key: counts[key] + count}}
        self._counters = replace(self._counters, **changed)

    def _update(self, name: str, connection: Connection | None = None, **changes: Any) -> None:
        """Change a session, also by what was read of its process. The caller holds the lock."""
        if connection is not None:
            thread = {} if self._budget.limit(name) else connection.thread.seconds
            changes |= {"record": connection.record, "thread": thread, "inquiry": connection.inquirer.current}
        self._sessions[name] = self._sessions[name]._replace(**changes)
        self._view = None
