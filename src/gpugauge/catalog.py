"""Every metric that gpugauge can export, by collector: reference, dashboards and rules are made from this one list."""

from __future__ import annotations

from gpugauge.collectors.device.clocks import ClocksCollector
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.collectors.device.health import HealthCollector
from gpugauge.collectors.device.links import LinksCollector
from gpugauge.collectors.device.mig import MigCollector
from gpugauge.collectors.device.profiling import ProfilingCollector
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.collectors.exporter.driver import DriverCollector
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.collectors.process.allocation import AllocationCollector
from gpugauge.collectors.process.host import HostCollector
from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.metric import Metric

# In the order in which they run and are shown.
_DEVICES = (
    *(DeviceCollector, UtilizationCollector, ProfilingCollector, ClocksCollector),
    *(HealthCollector, EventsCollector, LinksCollector, MigCollector),
)
_JOBS = (ProcessCollector, HostCollector, AllocationCollector, TrainingCollector, VerdictCollector)

CATALOG: dict[str, tuple[Metric, ...]] = {
    collector.name: collector.metrics for collector in (*_DEVICES, *_JOBS, DriverCollector, ExporterCollector)
}


def metrics() -> tuple[Metric, ...]:
    """Return all rows in the order of their collectors; raises ValueError when two rows share a name."""
    rows = tuple(row for table in CATALOG.values() for row in table)
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"these names stand in two tables: {', '.join(twice)}")
    return rows
