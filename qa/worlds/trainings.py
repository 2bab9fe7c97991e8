"""Trainings with parts that the simulator's pipeline does not have, and the gain without each of their faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpugauge.simulator.device.pipeline import Pipeline
from qa.worlds.truth import MIN_SPEEDUP, REMOVED, without

ASLEEP, OFFLOADED = "waiting_elsewhere", "offloaded"
CAUSES = (*REMOVED, "underfilled", "precision_unused", ASLEEP, OFFLOADED)


@dataclass(frozen=True, slots=True)
class Training:
    """`pipeline` is without the other two, which are seconds of the training thread in each step: `asleep` in code of
    the program that is no loader, `offloaded` with an optimizer that works on the CPU.
    """

    pipeline: Pipeline
    asleep: float = 0.0
    offloaded: float = 0.0

    @property
    def built(self) -> Pipeline:
        """The pipeline of all parts. Nothing slows a thread that sleeps."""
        p = self.pipeline
        return replace(p, host=p.host + self.offloaded + self.asleep / p.slowed)

    def without(self, cause: str) -> Training:
        """Return the training without a cause."""
        if cause == ASLEEP:
            return replace(self, asleep=0.0)
        if cause == OFFLOADED:
            return replace(self, offloaded=0.0)
        if cause == "host_bound" and (self.asleep or self.offloaded):
            # The thread still waits for the GPU where it needs what the GPU computes.
            return replace(self, pipeline=replace(self.pipeline, host=0.0))
        return replace(self, pipeline=without(self.pipeline, cause))


Parts = Sequence[tuple[float, Training]]
"""Seconds of each part of a run, which does other work, or does the same work under other conditions."""


def speedups(parts: Parts) -> Mapping[str, float]:
    """Return the speedup of all parts together without each cause."""
    whole = sum(seconds for seconds, _ in parts)
    steps = [(seconds / training.built.step, training) for seconds, training in parts]
    return {cause: whole / sum(n * training.without(cause).built.step for n, training in steps) for cause in CAUSES}


def main_cause(gains: Mapping[str, float]) -> str | None:
    """Return the cause whose removal speeds the run up most, None if it is by less than a tenth."""
    best = max(gains, key=lambda cause: gains[cause])
    return best if gains[best] >= MIN_SPEEDUP else None


def saves_as_much(gains: Mapping[str, float], named: str) -> bool:
    """Return whether the removal of a cause saves at least nine tenths of what the best removal saves."""
    best = max(gains.values())
    return best >= MIN_SPEEDUP and 1.0 - 1.0 / gains.get(named, 1.0) >= 0.9 * (1.0 - 1.0 / best)
