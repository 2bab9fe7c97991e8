"""The exporter about itself: what runs, what fails, and since when."""

from __future__ import annotations

import platform

from prometheus_client import ProcessCollector

import gpugauge
from gpugauge.collectors.base import Tick
from gpugauge.metric import BYTES, NONE, SECONDS, TIMESTAMP, Family, Metric, Table, families
from gpugauge.snapshot import Health, Section

_OWN_INTERVAL = 5.0  # seconds

_exporter = Table()
_collector = Table("collector")


def _build(tick: Tick) -> dict[tuple[str, ...], float]:
    simulated = bool(tick.driver.facts and tick.driver.facts.simulated)
    driver = (tick.driver.facts.driver_version if tick.driver.facts else None) or ""
    return {(gpugauge.__version__, platform.python_version(), driver, str(simulated).lower()): 1}


EXPORTER: tuple[Metric, ...] = (
    _exporter.gauge(
        "gpugauge_build_info",
        "Versions in use; always 1. simulated is true when the devices come from a scenario, not from a driver.",
        NONE,
        _build,
        *("version", "python", "driver_version", "simulated"),
    ),
    _exporter.gauge(
        "gpugauge_snapshot_timestamp_seconds",
        "Unix time at which these values were put together.",
        TIMESTAMP,
        lambda t: t.timestamp,
    ),
    _exporter.gauge(
        "gpugauge_driver_up",
        "1 while the driver answers; otherwise 0, with what is missing as the reason.",
        NONE,
        lambda t: {t.driver.reason: int(t.driver.up)},
        "reason",
    ),
    _exporter.counter(
        "gpugauge_worker_restarts_total",
        "Workers replaced because they ended or did not answer in time.",
        NONE,
        lambda t: t.driver.worker_restarts,
    ),
    _exporter.gauge(
        "gpugauge_worker_unkillable",
        "Former workers that hang inside the kernel and that no signal ends.",
        NONE,
        lambda t: t.driver.workers_unkillable,
    ),
)

COLLECTORS: tuple[Metric, ...] = (
    _collector.gauge(
        "gpugauge_collector_success",
        "1 when the collector's last run went well.",
        NONE,
        lambda h: int(h.success),
    ),
    _collector.gauge(
        "gpugauge_collector_duration_seconds",
        "Duration of the collector's last run.",
        SECONDS,
        lambda h: h.duration,
    ),
    _collector.gauge(
        "gpugauge_collector_last_success_timestamp_seconds",
        "Unix time of the collector's last good run; absent if it never had one.",
        TIMESTAMP,
        lambda h: h.last_success or None,
    ),
    _collector.counter(
        "gpugauge_collector_failures_total",
        "Runs of the collector that failed.",
        NONE,
        lambda h: h.failures,
    ),
)

_part = Table("part")
PARTS: tuple[Metric, ...] = (
    _part.counter(
        "gpugauge_cpu_seconds_total",
        "CPU time of the daemon and of its present worker.",
        SECONDS,
        lambda p: p.get("process_cpu_seconds_total"),
        source="/proc/PID/stat",
    ),
    _part.gauge(
        "gpugauge_resident_memory_bytes",
        "Resident memory of the daemon and of its present worker.",
        BYTES,
        lambda p: p.get("process_resident_memory_bytes"),
        source="/proc/PID/stat",
    ),
    _part.gauge(
        "gpugauge_open_fds",
        "Open file descriptors of the daemon and of its present worker.",
        NONE,
        lambda p: p.get("process_open_fds"),
        source="/proc/PID/fd",
    ),
    _part.gauge(
        "gpugauge_start_timestamp_seconds",
        "Unix time at which the daemon and its present worker were started.",
        TIMESTAMP,
        lambda p: p.get("process_start_time_seconds"),
        source="/proc/PID/stat",
    ),
)


class ExporterCollector:
    """Runs last in each tick: it tells how the others went."""

    name = "exporter"
    metrics = EXPORTER + COLLECTORS + PARTS

    def __init__(self) -> None:
        self._worker_pid: int | None = None
        # Of a worker that is gone it finds nothing, and then tells nothing.
        self._parts = {
            "daemon": ProcessCollector(registry=None),
            "worker": ProcessCollector(pid=lambda: self._worker_pid or 0, registry=None),
        }
        self._own: tuple[Family, ...] = ()
        self._own_due = 0.0

    def collect(self, tick: Tick) -> Section:
        """Return the exporter's own families; new every tick, they hold its time."""
        healths: list[tuple[tuple[str, ...], Health]] = [((name,), health) for name, health in tick.health.items()]
        told = families(EXPORTER, [((), tick)]) + families(COLLECTORS, healths)
        return Section(self.name, told + self._own_use(tick))

    def _own_use(self, tick: Tick) -> tuple[Family, ...]:
        """Read what daemon and worker use, every few seconds: it lists all their descriptors."""
        if tick.monotonic >= self._own_due:
            self._own_due = tick.monotonic + _OWN_INTERVAL
            self._worker_pid = tick.driver.worker_pid
            subjects = [((part,), _values(collector)) for part, collector in self._parts.items()]
            self._own = families(PARTS, subjects)
        return self._own


def _values(collector: ProcessCollector) -> dict[str, float]:
    return {sample.name: sample.value for family in collector.collect() for sample in family.samples}
