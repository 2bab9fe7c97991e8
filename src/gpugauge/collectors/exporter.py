"""The exporter about itself: what runs, what fails, and since when."""

from __future__ import annotations

import platform

import gpugauge
from gpugauge.collectors.base import Tick
from gpugauge.metric import NONE, SECONDS, TIMESTAMP, Metric, Table, families
from gpugauge.snapshot import Health, Section

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


class ExporterCollector:
    """Runs last in each tick: it tells how the others went."""

    name = "exporter"
    metrics = EXPORTER + COLLECTORS

    def collect(self, tick: Tick) -> Section:
        """Return the exporter's own families; new every tick, they hold its time."""
        healths: list[tuple[tuple[str, ...], Health]] = [((name,), health) for name, health in tick.health.items()]
        return Section(self.name, families(EXPORTER, [((), tick)]) + families(COLLECTORS, healths))
