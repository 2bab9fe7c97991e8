"""Counts of refused connections until they are reported to the daemon."""

from __future__ import annotations

from gpugauge.sessions.receiver import protocol as p

TYPE_CHECKING = False  # importing typing costs 1.3 MB
if TYPE_CHECKING:
    from gpugauge.sessions.receiver.channel import Channel

_MAX_REPORTED = 64  # users and reasons at once: a range of users would fill the channel


class Refusals:
    """Counts by user, reason and detail. Users beyond a limit are counted together."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], int] = {}

    def add(self, uid: int, reason: str, detail: str) -> None:
        """Count a connection."""
        key = uid, reason, detail
        if key not in self._counts and len(self._counts) >= _MAX_REPORTED:
            key = p.MANY_USERS, reason, detail
        self._counts[key] = self._counts.get(key, 0) + 1

    def report(self, channel: Channel) -> None:
        """Send the counts, and begin again with none."""
        counts, self._counts = self._counts, {}
        for (uid, reason, detail), count in counts.items():
            channel.send(p.REJECTED, 0, p.REFUSED.pack(uid, count) + reason.encode() + b"\0" + detail.encode())
