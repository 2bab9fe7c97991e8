"""Metrics of the exporter itself: build, driver connection, collectors, resource usage, reloads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from gpugauge.base import buildinfo
from gpugauge.collectors.base import Tick
from gpugauge.driver.api import RELEASED
from gpugauge.metric import Family, Metric, Table, families
from gpugauge.snapshot import Health, LastReload, Section
from gpugauge.workload.procfs import TICKS_PER_SECOND, Procfs


class Usage(NamedTuple):
    """CPU seconds, resident bytes, open file descriptors, Unix time of the start; None if it cannot be read."""

    cpu: float
    resident: int
    descriptors: int | None
    started: float | None


def read_usage(pid: int, procfs: Procfs | None = None) -> Usage | None:
    """Return the usage of a process, None if there is no such process."""
    procfs = procfs or Procfs()
    stat = procfs.stat(pid)
    if stat is None:
        return None
    boot = procfs.boot_time()
    try:
        descriptors = sum(1 for _ in (procfs.root / str(pid) / "fd").iterdir())
    except OSError:
        descriptors = None
    started = None if boot is None else boot + stat.start / TICKS_PER_SECOND
    return Usage(stat.cpu, stat.resident, descriptors, started)


_USAGE_INTERVAL_SECONDS = 4.5  # a little less than 5: ticks are up to 5 s apart, and not exactly periodic

_exporter = Table[Tick]()
_collector = Table[Health]("collector")


def _build(tick: Tick) -> dict[tuple[str, ...], float]:
    driver = (tick.driver.facts.driver_version if tick.driver.facts else None) or ""
    build = buildinfo.build()
    return {(build.version, build.revision, sys.version.split()[0], driver, str(_simulated(tick)).lower()): 1}


def _simulated(tick: Tick) -> bool:
    return tick.driver.simulated or bool(tick.driver.facts and tick.driver.facts.simulated)


EXPORTER: tuple[Metric, ...] = (
    BUILD := _exporter.gauge(
        "gpugauge_build_info",
        "Versions of the exporter, Python and driver, and the commit; always 1. simulated is true if the devices come "
        "from a scenario and not from a driver.",
        _build,
        *("version", "revision", "python", "driver_version", "simulated"),
    ),
    SNAPSHOT := _exporter.gauge(
        "gpugauge_snapshot_timestamp_seconds", "Unix time at which the values were collected.", lambda t: t.timestamp
    ),
    DRIVER_UP := _exporter.gauge(
        "gpugauge_driver_up",
        "1 while the driver responds, otherwise 0 with the reason.",
        lambda t: {t.driver.reason: int(t.driver.up)},
        "reason",
    ),
    DRIVER_RELEASED := _exporter.gauge(
        "gpugauge_driver_released",
        "1 while the driver is released on request: no worker runs, and series of GPUs are absent.",
        lambda t: int(t.driver.reason == RELEASED),
    ),
    RELEASED_UNTIL := _exporter.gauge(
        "gpugauge_driver_released_until_timestamp_seconds",
        "Unix time at which the release of the driver ends; absent if it is not released.",
        lambda t: t.driver.released_until,
    ),
    _exporter.counter(
        "gpugauge_worker_recycles_total",
        "Workers that were replaced although they worked, by reason: limit of memory or age reached, new GPUs, "
        "changed settings.",
        lambda t: t.driver.worker_recycles,
        "reason",
    ),
    _exporter.counter(
        "gpugauge_worker_restarts_total",
        "Workers replaced because they ended or did not reply in time.",
        lambda t: t.driver.worker_restarts,
    ),
    _exporter.gauge(
        "gpugauge_worker_unkillable",
        "Former workers that hang inside the kernel and cannot be killed.",
        lambda t: t.driver.workers_unkillable,
    ),
)

COLLECTORS: tuple[Metric, ...] = (
    SUCCESS := _collector.gauge(
        "gpugauge_collector_success",
        "1 if the last run of the collector succeeded. Threads of the daemon that have failed are here, too.",
        lambda h: int(h.success),
    ),
    _collector.gauge(
        "gpugauge_collector_duration_seconds", "Duration of the last run of the collector.", lambda h: h.duration
    ),
    _collector.gauge(
        "gpugauge_collector_last_success_timestamp_seconds",
        "Unix time of the last successful run of the collector; absent if there was none.",
        lambda h: h.last_success or None,
    ),
    _collector.counter("gpugauge_collector_failures_total", "Failed runs of the collector.", lambda h: h.failures),
)

_part = Table[Usage]("part", source="/proc/PID/stat")
_reload = Table[LastReload]()
PARTS: tuple[Metric, ...] = (
    _part.counter(
        "gpugauge_cpu_seconds_total",
        "CPU time of the daemon, of its current worker, and of the receiver of training processes.",
        lambda u: u.cpu,
    ),
    _part.gauge(
        "gpugauge_resident_memory_bytes",
        "Resident memory of the daemon, of its current worker, and of the receiver of training processes.",
        lambda u: u.resident,
    ),
    _part.gauge(
        "gpugauge_open_fds",
        "Open file descriptors of the daemon, of its current worker, and of the receiver of training processes.",
        lambda u: u.descriptors,
        source="/proc/PID/fd",
    ),
    _part.gauge(
        "gpugauge_start_timestamp_seconds",
        "Unix time at which the daemon, its current worker and the receiver of training processes were started.",
        lambda u: u.started,
    ),
)


def _reload_rows(stem: str, successful: str, timestamp: str) -> tuple[Metric, ...]:
    return (
        _reload.gauge(f"{stem}_last_reload_successful", successful, lambda r: int(r.successful)),
        _reload.gauge(f"{stem}_last_reload_success_timestamp_seconds", timestamp, lambda r: r.timestamp),
    )


WEB = _reload_rows(
    "gpugauge_web_config",
    "1 if the last reload of the web configuration file succeeded, 0 while an older one stays in use; absent without "
    "such a file.",
    "Unix time at which the web configuration in use was read, including the files that it names.",
)
CONFIG = _reload_rows(
    "gpugauge_config",
    "1 if the last reload of the settings succeeded, 0 while older ones stay in use.",
    "Unix time at which the settings in use were read.",
)


class ExporterCollector:
    """Runs last in each tick, since it exports the health of the other collectors."""

    name = "exporter"
    metrics = EXPORTER + COLLECTORS + PARTS + WEB + CONFIG

    def __init__(
        self,
        web_config: Callable[[], LastReload | None] = lambda: None,
        config: Callable[[], LastReload | None] = lambda: None,
        receiver: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`receiver` returns the pid of the receiver of training processes."""
        self._receiver = receiver
        self._reloads = ((WEB, web_config), (CONFIG, config))
        self._usage: tuple[Family, ...] = ()
        self._usage_due = 0.0

    def collect(self, tick: Tick) -> Section:
        """Return the exporter's own families; a new section in every tick, since it contains the time of the tick."""
        tick.node.build = buildinfo.build().version, _simulated(tick)
        healths: list[tuple[tuple[str, ...], Health]] = [((name,), health) for name, health in tick.health.items()]
        found = families(EXPORTER, [((), tick)]) + families(COLLECTORS, healths)
        for rows, last_reload in self._reloads:
            reload = last_reload()
            found += families(rows, [((), reload)] if reload else [])
        return Section(self.name, found + self._usage_families(tick))

    def _usage_families(self, tick: Tick) -> tuple[Family, ...]:
        """Return the usage of each process, read every few seconds: reading it lists all their descriptors."""
        if tick.monotonic >= self._usage_due:
            self._usage_due = tick.monotonic + _USAGE_INTERVAL_SECONDS
            pids = {"daemon": os.getpid(), "worker": tick.driver.worker_pid, "receiver": self._receiver()}
            usages = [((part,), read_usage(pid)) for part, pid in pids.items() if pid]
            self._usage = families(PARTS, [(labels, usage) for labels, usage in usages if usage])
        return self._usage
