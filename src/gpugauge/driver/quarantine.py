"""Quarantine of GPUs whose calls hang or end the worker: they are not read for a while, longer after each failure."""

from __future__ import annotations

from dataclasses import dataclass

# Seconds: the first quarantine is twice the base, each further one twice the one before, up to the maximum.
_BASE_SECONDS, _MAX_SECONDS = 15.0, 600.0
# The failures of a GPU are forgotten after it has replied for this long.
_FORGET_SECONDS = 600.0


@dataclass(slots=True)
class _Suspect:
    """The number of failures of a GPU, and when it may be read again (monotonic seconds)."""

    failures: int = 0
    until: float = 0.0


class Quarantine:
    """Suspect GPUs by index; times are monotonic seconds."""

    def __init__(self) -> None:
        self._suspects: dict[int, _Suspect] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._suspects

    def may_read(self, index: int, now: float) -> bool:
        """Return whether a GPU may be read now."""
        suspect = self._suspects.get(index)
        return suspect is None or now >= suspect.until

    def record_failure(self, index: int, now: float, *, hangs: bool) -> float | None:
        """Record a failure; return the seconds of quarantine. None for the first crash within minutes: a worker that
        ended while it read the GPU may have had another reason.
        """
        suspect = self._suspects.setdefault(index, _Suspect())
        suspect.failures += 1
        suspect.until = now
        if not hangs and suspect.failures < 2:
            return None
        seconds = min(_MAX_SECONDS, _BASE_SECONDS * 2.0**suspect.failures)
        suspect.until += seconds
        return seconds

    def record_reply(self, index: int, now: float) -> None:
        """Record a reply; the failures of the GPU are forgotten when it has replied for long enough."""
        suspect = self._suspects.get(index)
        if suspect and now - suspect.until > _FORGET_SECONDS:
            del self._suspects[index]

    def clear(self) -> None:
        """Forget all GPUs: the indexes may mean other ones now."""
        self._suspects.clear()
