"""Summary of an ended training in one log line."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Summary:
    """Sums over the life of a process; times in seconds, GPU time in GPUs times seconds."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by state
    lost: dict[str, float] = field(default_factory=dict)  # GPU time by cause
    held: float = 0.0  # GPU time
    busy: float = 0.0  # GPU time
    peak_memory: float = 0.0  # peak bytes allocated by the caching allocator, all GPUs together
    _loads: Counter[int] = field(default_factory=Counter)  # minutes by their mean load in percent

    def add_load(self, loads: list[float], elapsed: float) -> None:
        """Add the load of each GPU over the last minute, 0 to 1; `elapsed` is in seconds since the last call."""
        self.busy += elapsed * sum(loads)
        if loads:
            self._loads[round(100 * sum(loads) / len(loads))] += 1

    def load_percentile(self, share: float) -> int | None:
        """Return the load in percent below which `share` of the time was spent, None if no load was added."""
        enough, count = share * self._loads.total(), 0
        for percent in sorted(self._loads):
            count += self._loads[percent]
            if count >= enough:
                return percent
        return None

    def line(self) -> dict[str, Any]:
        """Return the fields of the log line; unknown ones are left out."""
        lost = sorted(((seconds, cause) for cause, seconds in self.lost.items() if seconds >= 1.0), reverse=True)
        states = sorted((state, seconds) for state, seconds in self.seconds.items() if seconds)
        line: dict[str, Any] = {"states": ",".join(f"{state}:{seconds:.0f}" for state, seconds in states)}
        if self.held:
            line |= {"gpu_seconds_held": round(self.held), "gpu_seconds_busy": round(self.busy)}
            line["gpu_seconds_lost"] = ",".join(f"{cause}:{seconds:.0f}" for seconds, cause in lost) or "none"
        if self._loads:
            line["load_percent_mean"] = round(sum(p * n for p, n in self._loads.items()) / self._loads.total())
            line |= {f"load_percent_p{100 * share:.0f}": self.load_percentile(share) for share in (0.05, 0.5, 0.95)}
        if self.peak_memory:
            line["peak_memory_bytes"] = round(self.peak_memory)
        return line
