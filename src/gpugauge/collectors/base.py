"""The interface of a collector: a name, metric rows, and a function from a tick to a section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gpugauge.collectors.kmsg import KernelLog
from gpugauge.driver.api import DriverView, Reply
from gpugauge.faults.repair import ANY_SITE, Site
from gpugauge.metric import Metric
from gpugauge.node.node import Node
from gpugauge.sessions.session import Session, SessionSource
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Health, Section
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Tick:
    """Input of all collectors in one tick. `replies` are the worker's replies since the last tick, oldest first."""

    timestamp: float  # Unix time
    monotonic: float
    driver: DriverView
    replies: tuple[Reply, ...] = ()
    health: Mapping[str, Health] = field(default_factory=dict)
    node: Node = field(default_factory=Node)  # the parts of the collectors that ran earlier in this tick


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of a node besides the driver. Each collector takes those that it reads in `create`.

    `procfs` shows the processes that the driver lists, and `workloads` are theirs. `session_workloads` returns those of
    the /proc that shows the pid of a session; by default that is the same.
    """

    procfs: Procfs
    workloads: Workloads
    sessions: SessionSource | None = None
    session_workloads: Callable[[Session], Workloads] | None = None
    kernel_log: KernelLog | None = None
    fault_file: Path | None = None  # in which faults of GPUs are remembered
    boot: str = ""  # identifies the boot of the machine
    site: Callable[[], Site] = lambda: ANY_SITE  # the place of this daemon
    created: list[RegisteredCollector] = field(default_factory=list)

    def collector(self, kind: type[_T]) -> _T:
        """Return a collector that was created before. Raises LookupError if it is not registered before."""
        for collector in self.created:
            if isinstance(collector, kind):
                return collector
        raise LookupError(f"{kind.__name__} must be registered before the collector that reads it")


class RegisteredCollector:
    """Base class of the collectors in `gpugauge.base.registry`. An exception costs its section of this tick only."""

    name: str
    """The name in the settings (`collector.NAME`) and in the exporter's own metrics."""
    metrics: tuple[Metric, ...]
    """The rows that the collector can export."""

    @classmethod
    def create(cls, sources: Sources) -> RegisteredCollector | None:  # noqa: ARG003  (most read the driver's replies only)
        """Return a collector of these sources, None if they have nothing for it to read."""
        return cls()

    def configure(self, settings: Settings) -> None:
        """Apply the settings that a reload can change."""

    def collect(self, tick: Tick) -> Section:
        """Return the collector's families; the same object as before if nothing changed."""
        raise NotImplementedError
