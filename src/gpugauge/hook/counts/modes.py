"""Modes of torch that cost time in each step while they are on, and calls that cost time when each step makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ANOMALY_DETECTION = "anomaly_detection"
AUTOCAST = "autocast"
EMPTY_CACHE = "empty_cache"
PROFILER = "profiler"

_MIN_STEPS = 3  # in which a habit shows
_MIN_SAMPLES = 3


class Modes:
    """Whether each mode was on in at least half of the steps. A mode that is entered in each step can be off between
    the steps, so two things show it: samples at snapshots, and calls that switch it on.
    """

    def __init__(self, is_on: Mapping[str, Callable[[], Any]]) -> None:
        """`is_on` returns by mode whether it is on."""
        self._is_on = is_on
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.calls: dict[str, int] = {ANOMALY_DETECTION: 0, AUTOCAST: 0, EMPTY_CACHE: 0}
        self._samples = 0
        self._on = dict.fromkeys(self._is_on, 0)
        self._since: tuple[int, dict[str, int]] | None = None  # steps and calls at the start of the interval
        self._found: dict[str, str | None] = {}

    def sample(self) -> None:
        """Note which modes are on at this moment."""
        self._samples += 1
        for mode, is_on in self._is_on.items():
            self._on[mode] += bool(is_on())

    def facts(self, steps: int) -> dict[str, str | None]:
        """Return yes, no or None by mode, over the steps since the last new values. `steps` are those so far."""
        if self._since is None:
            self._since = steps, dict(self.calls)
        before, called = self._since
        if steps - before >= _MIN_STEPS and self._samples >= _MIN_SAMPLES:
            habits = {name: 2 * (count - called[name]) >= steps - before for name, count in self.calls.items()}
            sampled = {mode: 2 * count >= self._samples for mode, count in self._on.items()}
            names, both = habits.keys() | sampled.keys(), habits.keys() & sampled.keys()
            # Samples alone miss what is on within a step only; calls alone miss a function bound before the hook began.
            found = {name: bool(habits.get(name) or sampled.get(name)) for name in names}
            self._found = {n: "yes" if on else "no" if n in both else None for n, on in found.items()}
            self._since, self._samples, self._on = (steps, dict(self.calls)), 0, dict.fromkeys(self._on, 0)
        return self._found
