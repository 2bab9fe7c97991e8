"""The session of a training process that reports through the hook: frozen, so that every thread can read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpugauge.sessions.budget import LIMITS
from gpugauge.sessions.inquiry import Inquiry
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord

REJECTION_REASONS = ("oversized", "malformed", "foreign", "rate", "silent", "connections", "connect_rate", "banned")
RECEIVER_ENDS = ("stuck", "blocked", "ended")
NO_OWNER = ("",) * 5
SESSION_END_REASONS = (*wire.END_REASONS, "killed", "oom_killed", "rejected", "other")


class ThreadTime(NamedTuple):
    """Seconds of a training thread in a phase: on a CPU, waiting for one, and asleep."""

    running: float = 0.0
    runnable: float = 0.0
    asleep: float = 0.0

    def plus(self, others: Iterable[float]) -> ThreadTime:
        """Return the sums."""
        return ThreadTime(*map(sum, zip(self, others, strict=True)))


class Session(NamedTuple):
    """One training process. `end_reason` is one of SESSION_END_REASONS, empty until it is settled; `end_status` is as
    of os.waitpid. `record` and `thread` (the training thread's time by phase) are read every SWEEP_INTERVAL_SECONDS.
    """

    hello: wire.Hello
    peer_pid: int  # in the pid namespace of the daemon; 0 if the process has none there, or if it is not proven
    peer_uid: int
    snap: wire.Snap | None = None
    ended_at: float | None = None
    end_reason: str = ""
    end_status: int | None = None
    record: SharedRecord | None = None
    thread: Mapping[str, ThreadTime] = {}
    peer_start: int | None = None  # in clock ticks after boot; None where pids are simulated
    owner: tuple[str, ...] = NO_OWNER  # values of workload.identity.JOB_LABELS, added by the collector
    inquiry: Inquiry | None = None  # of a process that makes no progress
    mistakes: Mapping[str, bool] = {}  # known ones that it makes or does not, added likewise

    @property
    def facts(self) -> Mapping[str, str]:
        """The facts that the process has reported so far."""
        return {**self.hello.facts, **self.snap.facts} if self.snap else self.hello.facts

    @property
    def connected(self) -> bool:
        """Whether the process holds its lease. Gauges of a process without one are stale."""
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the start, by reason or limit, of connections, sessions and receivers; `banned`: bans in force."""

    rejected: Mapping[str, int]
    ended: Mapping[str, int]
    replaced: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(RECEIVER_ENDS, 0))
    banned: int = 0
    replaced_at: float | None = None  # Unix time of the last replacement
    cut: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0))


class SessionSource(Protocol):
    """A source of sessions: the listener of the hook's socket, or the simulator."""

    def view(self) -> tuple[Session, ...]:
        """Return all sessions; the same object as before if nothing changed. Raises SessionsError."""

    def counters(self) -> Counters:
        """Return the counters; the same object as before if nothing changed."""
