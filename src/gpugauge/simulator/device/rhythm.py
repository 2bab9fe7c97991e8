"""The phases of a training as functions of time: compiling, training, evaluating, checkpointing, stalled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpugauge.simulator.device.load import Load


class Rhythm:
    """A training compiles first; in each period it then trains, evaluates and writes a checkpoint. From `stalled_at` on
    it makes no progress. Times are seconds of the scenario.
    """

    def __init__(self, plain: Mapping[str, Any] | None, start: float, end: float) -> None:
        plain = plain or {"compiling": 0.0, "every": None, "evaluating": 0.0, "checkpointing": 0.0, "stalled_at": None}
        self.start, self._end = start, end
        self._begin: float = start + plain["compiling"]
        self._period: float = plain["every"] or float("inf")
        self._training: float = self._period - plain["evaluating"] - plain["checkpointing"]
        self._parts: tuple[tuple[str, float], ...] = (
            ("training", self._training),
            ("evaluating", plain["evaluating"]),
            ("checkpointing", plain["checkpointing"]),
        )
        self._stalled_at = float("inf") if plain["stalled_at"] is None else max(self._begin, plain["stalled_at"])

    def seconds(self, t: float) -> dict[str, float]:
        """Return the seconds in each phase until `t`; a stall counts as training."""
        t = max(self.start, min(t, self._end))
        found = self._until(min(t, self._stalled_at))
        found["training"] += max(0.0, t - self._stalled_at)
        return found

    def progress(self, t: float, phase: str = "training") -> float:
        """Return the seconds until `t` in which a phase made progress."""
        return self._until(max(self.start, min(t, self._end, self._stalled_at)))[phase]

    def moment(self, progress: float) -> float:
        """Return the first second at which the progress of the training is `progress`."""
        periods, rest = divmod(progress, self._training)
        if periods and not rest:
            periods, rest = periods - 1, self._training
        return self._begin + (periods * self._period if periods else 0.0) + rest

    def phase(self, t: float) -> tuple[str, float]:
        """Return the phase at `t` and the second of its start."""
        t = min(t, self._end, self._stalled_at)
        if t < self._begin:
            return "compiling", self.start
        periods, rest = divmod(t - self._begin, self._period)
        since = self._begin + (periods * self._period if periods else 0.0)
        for name, seconds in self._parts:
            if rest < seconds:
                return name, since
            since, rest = since + seconds, rest - seconds
        return "training", since

    def pauses(self, t: float) -> int:
        """Return the number of interruptions of the training that ended before `t`."""
        interrupted = sum(seconds for _, seconds in self._parts[1:])
        return int(max(0.0, min(t, self._end, self._stalled_at) - self._begin) // self._period) if interrupted else 0

    def _until(self, t: float) -> dict[str, float]:
        periods, rest = divmod(max(0.0, t - self._begin), self._period)
        found = {"compiling": min(t, self._begin) - self.start}
        for name, seconds in self._parts:
            found[name] = (periods * seconds if periods else 0.0) + min(rest, seconds)
            rest = max(0.0, rest - seconds)
        return found


class Working(Load):
    """The load of a training: in each step the GPU is busy for `busy` seconds of `step`. With `smooth`, the busy time
    is spread evenly, like that of processes which share a GPU. Evaluation has the same mean load as training.
    """

    def __init__(self, rhythm: Rhythm, busy: float, step: float, *, smooth: bool) -> None:
        self._rhythm, self._busy, self._step, self._smooth = rhythm, min(busy, step), step, smooth

    def integral(self, t: float) -> float:
        """See Load."""
        trained, evaluated = self._rhythm.progress(t), self._rhythm.progress(t, "evaluating")
        level = self._busy / self._step
        if self._smooth:
            return (trained + evaluated) * level
        steps, rest = divmod(trained, self._step)
        return steps * self._busy + min(rest, self._busy) + evaluated * level
