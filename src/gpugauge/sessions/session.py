"""What the daemon knows of a training process that reports through the hook: frozen, for all threads to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpugauge.wire import messages as wire
from gpugauge.wire.record import Page

REJECTIONS = ("oversized", "malformed", "foreign", "rate", "silent", "connections")
ENDS = (*wire.END_REASONS, "killed", "rejected", "other")


@dataclass(frozen=True, slots=True)
class Session:
    """One training process. `received_at` and `ended_at` are Unix times; `end_reason` is one of ENDS, empty before.

    `page` was read at most a second ago (sessions.SWEEP_SECONDS), whether the process sends or not, and once more when
    it ended.
    """

    hello: wire.Hello
    peer_pid: int  # as the daemon sees it, 0 when its pid namespace cannot
    peer_uid: int
    received_at: float
    snap: wire.Snap | None = None
    ended_at: float | None = None
    end_reason: str = ""
    page: Page | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """What the process has told about itself so far."""
        return {**self.hello.facts, **self.snap.facts} if self.snap else self.hello.facts

    @property
    def connected(self) -> bool:
        """Whether the process holds its lease; gauges of one that does not are worth nothing."""
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the start: connections closed for what came over them, by REJECTIONS; sessions ended, by ENDS."""

    rejected: Mapping[str, int]
    ended: Mapping[str, int]
