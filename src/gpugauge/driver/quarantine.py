"""GPUs whose calls hang or end the worker: left out for a while, the longer the more often it happens."""

from __future__ import annotations

from dataclasses import dataclass

# Seconds: the first wait is twice this, and each further one twice as long, up to the longest …
_SHORTEST, _LONGEST = 15.0, 600.0
# … and all is forgotten when a GPU has answered for so long.
_FORGIVEN = 600.0


@dataclass(slots=True)
class _Suspect:
    """How often it failed, and when it may be tried again (monotonic seconds)."""

    failures: int = 0
    until: float = 0.0


class Quarantine:
    """Suspects by index; times are monotonic seconds."""

    def __init__(self) -> None:
        self._suspects: dict[int, _Suspect] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._suspects

    def may_read(self, index: int, now: float) -> bool:
        """Whether a GPU may be asked now."""
        suspect = self._suspects.get(index)
        return suspect is None or now >= suspect.until

    def failed(self, index: int, now: float, *, hangs: bool) -> float | None:
        """Take note of a failure; return for how long the GPU is left out. None: a worker that ended while it read
        the GPU may have had another reason, so that only the second one within minutes counts.
        """
        suspect = self._suspects.setdefault(index, _Suspect())
        suspect.failures += 1
        suspect.until = now
        if not hangs and suspect.failures < 2:
            return None
        wait = min(_LONGEST, _SHORTEST * 2.0**suspect.failures)
        suspect.until += wait
        return wait

    def answered(self, index: int, now: float) -> None:
        """Forgive a GPU that has answered for long enough."""
        suspect = self._suspects.get(index)
        if suspect and now - suspect.until > _FORGIVEN:
            del self._suspects[index]

    def clear(self) -> None:
        """Forget all: the indexes may mean other GPUs now."""
        self._suspects.clear()
