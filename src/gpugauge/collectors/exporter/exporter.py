"""The exporter about itself: what runs, what fails, and since when."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from gpugauge import buildinfo
from gpugauge.collectors.base import Tick
from gpugauge.collectors.exporter.ownuse import use
from gpugauge.driver.api import RELEASED
from gpugauge.metric import BYTES, NONE, SECONDS, TIMESTAMP, Family, Metric, Table, families
from gpugauge.snapshot import Health, Section

_OWN_INTERVAL = 4.5  # seconds; a little less than five: ticks are up to so far apart, and never exactly

_exporter = Table()
_collector = Table("collector")


def _build(tick: Tick) -> dict[tuple[str, ...], float]:
    simulated = tick.driver.simulated or bool(tick.driver.facts and tick.driver.facts.simulated)
    driver = (tick.driver.facts.driver_version if tick.driver.facts else None) or ""
    build = buildinfo.build()
    return {(build.version, build.revision, sys.version.split()[0], driver, str(simulated).lower()): 1}


EXPORTER: tuple[Metric, ...] = (
    _exporter.gauge(
        "gpugauge_build_info",
        "Versions in use, and the commit; always 1. simulated is true when the devices come from a scenario, not from "
        "a driver.",
        NONE,
        _build,
        *("version", "revision", "python", "driver_version", "simulated"),
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
    _exporter.gauge(
        "gpugauge_driver_released",
        "1 while the driver was given back on request: no worker runs, and nothing is known of the GPUs.",
        NONE,
        lambda t: int(t.driver.reason == RELEASED),
    ),
    _exporter.gauge(
        "gpugauge_driver_released_until_timestamp_seconds",
        "Unix time at which the driver is taken back; absent when it is not released.",
        TIMESTAMP,
        lambda t: t.driver.released_until,
    ),
    _exporter.counter(
        "gpugauge_worker_recycles_total",
        "Workers replaced although they worked: memory or age at its limit, GPUs that came, or settings changed.",
        NONE,
        lambda t: t.driver.worker_recycles,
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
_web = Table()
_config = Table()
PARTS: tuple[Metric, ...] = (
    _part.counter(
        "gpugauge_cpu_seconds_total",
        "CPU time of the daemon and of its present worker.",
        SECONDS,
        lambda u: u.cpu,
        source="/proc/PID/stat",
    ),
    _part.gauge(
        "gpugauge_resident_memory_bytes",
        "Resident memory of the daemon and of its present worker.",
        BYTES,
        lambda u: u.resident,
        source="/proc/PID/stat",
    ),
    _part.gauge(
        "gpugauge_open_fds",
        "Open file descriptors of the daemon and of its present worker.",
        NONE,
        lambda u: u.descriptors,
        source="/proc/PID/fd",
    ),
    _part.gauge(
        "gpugauge_start_timestamp_seconds",
        "Unix time at which the daemon and its present worker were started.",
        TIMESTAMP,
        lambda u: u.started,
        source="/proc/PID/stat",
    ),
)


WEB: tuple[Metric, ...] = (
    _web.gauge(
        "gpugauge_web_config_last_reload_successful",
        "1 when the last reading of the web configuration file could be used, 0 while a former one stays in use; "
        "absent without such a file.",
        NONE,
        lambda w: int(w[0]),
    ),
    _web.gauge(
        "gpugauge_web_config_last_reload_success_timestamp_seconds",
        "Unix time at which the web configuration in use was read, the files that it names included.",
        TIMESTAMP,
        lambda w: w[1],
    ),
)

CONFIG: tuple[Metric, ...] = (
    _config.gauge(
        "gpugauge_config_last_reload_successful",
        "1 when the last reading of the settings could be used, 0 while former ones stay in use.",
        NONE,
        lambda c: int(c[0]),
    ),
    _config.gauge(
        "gpugauge_config_last_reload_success_timestamp_seconds",
        "Unix time at which the settings in use were read.",
        TIMESTAMP,
        lambda c: c[1],
    ),
)

_Reload = tuple[bool, float] | None


class ExporterCollector:
    """Runs last in each tick: it tells how the others went."""

    name = "exporter"
    metrics = EXPORTER + COLLECTORS + PARTS + WEB + CONFIG

    def __init__(
        self, web_config: Callable[[], _Reload] = lambda: None, config: Callable[[], _Reload] = lambda: None
    ) -> None:
        """Both tell how the last reading of those settings went, and the Unix time of the last good one."""
        self._read = ((WEB, web_config), (CONFIG, config))
        self._own: tuple[Family, ...] = ()
        self._own_due = 0.0

    def collect(self, tick: Tick) -> Section:
        """Return the exporter's own families; new every tick, they hold its time."""
        healths: list[tuple[tuple[str, ...], Health]] = [((name,), health) for name, health in tick.health.items()]
        told = families(EXPORTER, [((), tick)]) + families(COLLECTORS, healths)
        for rows, last in self._read:
            found = last()
            told += families(rows, [((), found)] if found else [])
        return Section(self.name, told + self._own_use(tick))

    def _own_use(self, tick: Tick) -> tuple[Family, ...]:
        """Read what daemon and worker use, every few seconds: it lists all their descriptors."""
        if tick.monotonic >= self._own_due:
            self._own_due = tick.monotonic + _OWN_INTERVAL
            pids = {"daemon": os.getpid(), "worker": tick.driver.worker_pid}
            found = [((part,), use(pid)) for part, pid in pids.items() if pid]
            # Of a worker that is gone nothing is found, and then nothing is told.
            self._own = families(PARTS, [(labels, used) for labels, used in found if used])
        return self._own
