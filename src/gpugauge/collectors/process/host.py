"""How the processes that use a GPU or have torch mapped get on, as the machine sees them from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.background import Background
from gpugauge.collectors.process.hostscan import HostProcess, HostScan
from gpugauge.metric import BYTES, NONE, SECONDS, LabelValues, Metric, Table, by, families
from gpugauge.snapshot import Section
from gpugauge.workload.identity import LABELS
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

_INTERVAL = 9.5  # seconds; a little less than ten: ticks are up to five apart, and never exactly
# Scans follow each other so slowly that they take no more than this share of a core, however many processes there are.
_SHARE = 1 / 400
_HANGS = 60.0

_process = Table("process")
_scan = Table()


class HostError(Exception):
    """The processes of the machine cannot be looked at; the message says why."""


def _info(p: HostProcess) -> dict[tuple[str, ...], float]:
    inner = "" if p.container_pid is None else str(p.container_pid)
    return {(str(p.pid), inner, p.torch, p.visible_devices or "", *p.workload.labels()): 1}


PROCESSES: tuple[Metric, ...] = (
    _process.gauge(
        "gpu_process_host_info",
        "A process that uses a GPU or has torch mapped, whether it reports through the hook or not; always 1. "
        "torch_build is what it has mapped: cpu, cuda, rocm or empty; cuda_visible_devices is none if set to nothing.",
        NONE,
        _info,
        *("pid", "container_pid", "torch_build", "cuda_visible_devices", *LABELS),
        source="/proc/PID/maps, /proc/PID/environ",
    ),
    _process.counter(
        "gpu_process_cpu_seconds_total",
        "CPU time of its main thread, of the whole process (main thread included), and of its children, such as data "
        "loader workers.",
        SECONDS,
        lambda p: by(main=p.main_cpu, process=p.stat.cpu, children=p.children_cpu),
        "part",
        source="/proc/PID/stat, /proc/PID/task/PID/stat",
    ),
    _process.counter(
        "gpu_process_uninterruptible_seconds_total",
        "Time in which the main thread waited inside the kernel (state D), by looking every few seconds.",
        SECONDS,
        lambda p: p.uninterruptible,
        source="/proc/PID/stat",
    ),
    _process.counter(
        "gpu_process_major_faults_total",
        "Page faults that had to read from storage.",
        NONE,
        lambda p: p.stat.major_faults,
        source="/proc/PID/stat",
    ),
    _process.counter(
        "gpu_process_io_bytes_total",
        "What the process made the storage read and write.",
        BYTES,
        lambda p: p.io,
        "direction",
        source="/proc/PID/io",
    ),
    _process.gauge(
        "gpu_process_threads",
        "Threads of the process.",
        NONE,
        lambda p: p.stat.threads,
        source="/proc/PID/stat",
    ),
    _process.gauge(
        "gpu_process_affinity_cpus",
        "CPUs that the process may run on.",
        NONE,
        lambda p: p.affinity,
        source="/proc/PID/status",
    ),
    _process.gauge(
        "gpu_process_cgroup_cpus",
        "CPUs' worth of time that the quota of the process's cgroup allows; absent without a quota.",
        NONE,
        lambda p: p.cgroup.cpus,
        source="cpu.max, cpu.cfs_quota_us",
    ),
    _process.counter(
        "gpu_process_cgroup_throttled_seconds_total",
        "Time for which the quota of the process's cgroup held it back.",
        SECONDS,
        lambda p: p.cgroup.throttled,
        source="cpu.stat",
    ),
    _process.counter(
        "gpu_process_cgroup_pressure_seconds_total",
        "Time in which something in the process's cgroup waited for the resource (PSI, some).",
        SECONDS,
        lambda p: p.cgroup.pressure,
        "resource",
        source="cpu.pressure, io.pressure, memory.pressure",
    ),
    _process.gauge(
        "gpu_process_device_files",
        "Device files of NVIDIA GPUs and MIG devices that the process has open.",
        NONE,
        lambda p: p.device_files,
        source="/proc/PID/fd",
    ),
)


@dataclass(frozen=True, slots=True)
class _Cost:
    """What the scans took and what they could not look at."""

    seconds: float
    denied: int
    left_out: int


SCAN: tuple[Metric, ...] = (
    _scan.counter(
        "gpugauge_host_scan_cpu_seconds_total",
        "CPU time of looking at the machine's processes.",
        SECONDS,
        lambda c: c.seconds,
    ),
    _scan.gauge(
        "gpugauge_host_processes_denied",
        "Processes that may have torch mapped but may not be looked into: that needs root or CAP_SYS_PTRACE.",
        NONE,
        lambda c: c.denied,
    ),
    _scan.gauge(
        "gpugauge_host_processes_left_out",
        "Processes on GPUs or with torch that are not told about because there are too many.",
        NONE,
        lambda c: c.left_out,
    ),
)


class HostCollector:
    """Rows by process, new with every scan. Raises HostError while a scan hangs."""

    name = "host"
    metrics = PROCESSES + SCAN

    def __init__(
        self,
        procfs: Procfs,
        workloads: Workloads | None = None,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._scan = HostScan(procfs, workloads)
        self._clock = cpu_clock
        self._background: Background[Section] = Background("host")
        self._seconds = self._due = 0.0
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return what the last scan found; begin another when it is time."""
        running = self._background.running
        if running is None and tick.monotonic >= self._due:
            self._due = tick.monotonic + _INTERVAL
            pids = {p.pid for d in tick.driver.devices if d.up for p in d.reading.processes or ()}
            self._background.start(lambda: self._look(pids, tick.monotonic))
        elif running is not None and running > _HANGS:
            raise HostError(f"a process hangs inside the kernel: looking at it takes {running:.0f} s so far")
        self._section = self._background.take() or self._section
        return self._section

    def _look(self, pids: set[int], now: float) -> Section:
        """Scan; runs in the background."""
        begin = self._clock()
        found = self._scan.scan(pids, now)
        subjects: list[tuple[LabelValues, HostProcess]] = [((p.process,), p) for p in found]
        described = families(PROCESSES, subjects)
        spent = self._clock() - begin
        self._seconds += spent
        self._due = max(self._due, now + spent / _SHARE)
        cost = _Cost(self._seconds, self._scan.denied, self._scan.left_out)
        return Section(self.name, described + families(SCAN, [((), cost)]))
