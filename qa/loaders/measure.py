"""The wait of a measured training, where other programs took CPUs from it, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PREFETCH = 2  # DataLoader's default
QUIET_SECONDS = 5.0  # of the part of a run in which it was disturbed least
DISTURBED = 0.05  # share of the time: more delays change the waits
_LEAST_STEPS, _LEAST_OF_WORKER = 20, 10  # the waits for the batches of several workers come in groups


class Step(NamedTuple):
    """Seconds of a step: wait for the batch, loading of the batch wherever that was, own work, and the parts of these
    three in which the thread could have run and waited for a CPU; at its end, the CPU time of the training and of its
    workers.
    """

    wait: float
    loading: float
    own: float
    wait_delayed: float
    loading_delayed: float
    own_delayed: float
    cpu: float

    @property
    def seconds(self) -> float:
        return self.wait + self.own


@dataclass(frozen=True)
class Measured:
    """Means of a step: its time, and its time and wait if the training had the CPUs alone. These are times of the clock
    in the part of the run in which other programs disturbed it least, if that share is small, and computed otherwise.
    """

    step: float
    alone: float
    wait: float
    disturbed: float
    throughout: float = 0.0  # share of all of the time that other programs took

    @property
    def raw(self) -> bool:
        """Whether the times are those of the clock."""
        return self.disturbed <= DISTURBED


def measured(steps: Sequence[Step], workers: int, cpus: int) -> Measured:
    """Return the figures of a run whose loader had so many workers, on so many CPUs."""
    mean = sum(step.seconds for step in steps) / len(steps)
    quiet = min(
        _parts(steps, max(_LEAST_STEPS, _LEAST_OF_WORKER * workers)),
        key=lambda part: disturbance(part, workers, cpus),
        default=steps,
    )
    disturbed = disturbance(quiet, workers, cpus) if quiet is not steps else 1.0
    throughout = disturbance(steps, workers, cpus)
    if disturbed <= DISTURBED:
        seconds = sum(step.seconds for step in quiet) / len(quiet)
        return Measured(mean, seconds, sum(step.wait for step in quiet) / len(quiet), disturbed, throughout)
    wait = undelayed(steps, workers)
    own = sum(step.own - step.own_delayed for step in steps) / len(steps)
    alone = max(wait + own, _cpu(steps) / (len(steps) - 1) / cpus)
    return Measured(mean, alone, wait, disturbed, throughout)


def disturbance(steps: Sequence[Step], workers: int, cpus: int) -> float:
    """Return the share of the time that other programs took from a training."""
    if workers and cpus == 1:
        # Training and workers wait for each other, too: what all of them got of the CPU shows the rest.
        return 1.0 - _cpu(steps) / sum(step.seconds for step in steps[1:])
    threads = sum(step.seconds + (step.loading if workers else 0.0) for step in steps)
    delays = sum(step.wait_delayed + step.own_delayed for step in steps)
    return (delays + (sum(step.loading_delayed for step in steps) if workers else 0.0)) / threads


def _cpu(steps: Sequence[Step]) -> float:
    return steps[-1].cpu - steps[0].cpu


def _parts(steps: Sequence[Step], least: int) -> list[Sequence[Step]]:
    """Return all parts of a run that take QUIET_SECONDS and have enough steps."""
    found, end, seconds = list[Sequence[Step]](), 0, 0.0
    for begin, first in enumerate(steps):
        while end < len(steps) and (seconds < QUIET_SECONDS or end - begin < least):
            seconds += steps[end].seconds
            end += 1
        if seconds >= QUIET_SECONDS and end - begin >= least:
            found.append(steps[begin:end])
        seconds -= first.seconds
    return found


def undelayed(steps: Sequence[Step], workers: int) -> float:
    """Return the mean wait of a training whose batches and own work take so long without delays, by the order in which
    workers load: each the next batch when it has delivered one, and at most PREFETCH ahead.
    """
    if not workers:
        return sum(step.loading - step.loading_delayed for step in steps) / len(steps)
    done, taken, waited, now = list[float](), list[float](), 0.0, 0.0
    for number, step in enumerate(steps):
        begin = done[number - workers] if number >= workers else 0.0
        ahead = number - PREFETCH * workers
        done.append(max(begin, taken[ahead] if ahead >= 0 else 0.0) + step.loading - step.loading_delayed)
        arrived = max(now, done[number])
        waited += arrived - now if number >= PREFETCH * workers else 0.0
        taken.append(arrived)
        now = arrived + step.own - step.own_delayed
    return waited / max(1, len(steps) - PREFETCH * workers)
