"""What a collector is: a name, its rows, and one function from a tick to a section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpugauge.driver.api import DriverView, Reply
from gpugauge.metric import Metric
from gpugauge.snapshot import Health, Section


@dataclass(frozen=True, slots=True, eq=False)
class Tick:
    """What all collectors of one tick see. `replies` are the worker's answers since the tick before, oldest first."""

    timestamp: float
    monotonic: float
    driver: DriverView
    replies: tuple[Reply, ...] = ()
    health: Mapping[str, Health] = field(default_factory=dict)
    sections: Sequence[Section] = ()  # of the collectors that ran before in this tick


class Collector(Protocol):
    """Runs in the sampler's thread; what it raises costs its own section of this tick and nothing else."""

    @property
    def name(self) -> str:
        """The name by which the collector is switched on and off."""
        ...

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The rows that the collector can export."""
        ...

    def collect(self, tick: Tick) -> Section:
        """Return this collector's families; the same object as before when nothing changed."""
        ...
