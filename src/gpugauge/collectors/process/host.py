"""Processes that use a GPU or have torch mapped: CPU time, I/O, affinity and cgroup figures from /proc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpugauge.base.guard import Background
from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.collectors.process.host_scan import HostScan
from gpugauge.metric import LabelValues, Metric, Table, by, families
from gpugauge.snapshot import Section
from gpugauge.workload.identity import LABELS
from gpugauge.workload.processfiles import HostProcess
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

_INTERVAL_SECONDS = 9.5  # a little less than 10: ticks are up to 5 s apart, and not exactly periodic
# The interval between scans is extended so that scans take at most this share of a core.
_MAX_CPU_SHARE = 1 / 400
_HANGING_SECONDS = 60.0  # after which a scan counts as hanging

_process = Table[HostProcess]("process", source="/proc/PID/stat")
_part = Table[HostProcess]("process", "part", source="/proc/PID/stat")
_status = Table[HostProcess]("process", source="/proc/PID/status")
_scan = Table[HostScan]()


class HostError(Exception):
    """A scan of the processes hangs; the message contains the reason."""


def _info(p: HostProcess) -> dict[tuple[str, ...], float]:
    inner = "" if p.container_pid is None else str(p.container_pid)
    hook = "yes" if p.hook else ""
    return {(str(p.pid), inner, p.torch, p.visible_devices or "", hook, *p.workload): 1}


PROCESSES: tuple[Metric, ...] = (
    INFO := _process.gauge(
        "gpu_process_host_info",
        "A process that uses a GPU or has loaded torch, with or without the hook; always 1. torch_build is the build "
        "of torch that it has loaded: cpu, cuda, rocm or empty. cuda_visible_devices is none if the variable is set "
        "to an empty value. hook is yes if the process was started with the hook, as gpugauge run does, whether it has "
        "reported or not.",
        _info,
        *("pid", "container_pid", "torch_build", "cuda_visible_devices", "hook", *LABELS),
        source="/proc/PID/maps, /proc/PID/environ",
    ),
    CPU := _part.counter(
        "gpu_process_cpu_seconds_total",
        "CPU time by part: the main thread, the whole process (including the main thread), and its children, such as "
        "data loader workers.",
        lambda p: by(main=p.main_cpu, process=p.stat.cpu, children=p.children_cpu),
        source="/proc/PID/stat, /proc/PID/task/PID/stat",
    ),
    _process.counter(
        "gpu_process_uninterruptible_seconds_total",
        "Time in which the main thread was in uninterruptible sleep (state D), sampled at every scan.",
        lambda p: p.uninterruptible,
    ),
    _process.counter(
        "gpu_process_major_faults_total",
        "Page faults that required a read from storage.",
        lambda p: p.stat.major_faults,
    ),
    _process.counter(
        "gpu_process_io_bytes_total",
        "Bytes that storage read and wrote for the process.",
        lambda p: p.io,
        "direction",
        source="/proc/PID/io",
    ),
    _process.gauge("gpu_process_threads", "Threads of the process.", lambda p: p.stat.threads),
    _status.gauge("gpu_process_affinity_cpus", "CPUs on which the process can run.", lambda p: p.bounds.cpus),
    AFFINITY := _status.gauge(
        "gpu_process_affinity_info",
        "CPUs on which the process can run, as a list such as 0-7,16; always 1.",
        lambda p: {p.bounds.cpu_list: 1} if p.bounds.cpu_list else None,
        "cpus",
    ),
    _part.gauge(
        "gpu_process_resident_bytes",
        "Resident memory of the process, and of its children, such as data loader workers. Memory that several of them "
        "share counts in each.",
        lambda p: p.resident,
    ),
    _part.gauge(
        "gpu_process_anonymous_bytes",
        "Resident memory that no file backs, of the process and of its children: the heap, without mapped files.",
        lambda p: p.anonymous or None,
        source="/proc/PID/statm",
    ),
    _status.gauge(
        "gpu_process_swapped_bytes",
        "Memory of the process that is swapped out.",
        lambda p: p.bounds.swapped,
    ),
    MEMORY := _process.gauge(
        "gpu_process_cgroup_memory_bytes",
        "Memory of the process's cgroup that cannot be reclaimed without swap: anonymous and shared memory.",
        lambda p: p.cgroup.memory,
        source="memory.stat",
    ),
    MEMORY_LIMIT := _process.gauge(
        "gpu_process_cgroup_memory_limit_bytes",
        "Limit of the memory of the process's cgroup; absent without one.",
        lambda p: p.cgroup.memory_limit,
        source="memory.max, memory.limit_in_bytes",
    ),
    _process.gauge(
        "gpu_process_cgroup_cpus",
        "CPUs that the quota of the process's cgroup allows; absent without a quota.",
        lambda p: p.cgroup.cpus,
        source="cpu.max, cpu.cfs_quota_us",
    ),
    _process.counter(
        "gpu_process_cgroup_throttled_seconds_total",
        "Time for which the process's cgroup was throttled by its quota.",
        lambda p: p.cgroup.throttled,
        source="cpu.stat",
    ),
    _process.counter(
        "gpu_process_cgroup_pressure_seconds_total",
        "Time in which at least one task of the process's cgroup waited for the resource (PSI, some).",
        lambda p: p.cgroup.pressure,
        "resource",
        source="cpu.pressure, io.pressure, memory.pressure",
    ),
    _process.gauge(
        "gpu_process_memory_available_bytes",
        "Memory that new processes beside this one can use: of the machine, and up to the limit of its cgroup.",
        lambda p: p.memory_available,
        source="/proc/meminfo, memory.max, memory.current, memory.stat",
    ),
    _process.gauge(
        "gpu_process_device_files",
        "Device files of NVIDIA GPUs and MIG devices that the process has open.",
        lambda p: p.device_files,
        source="/proc/PID/fd",
    ),
)


SCAN: tuple[Metric, ...] = (
    _scan.counter(
        "gpugauge_host_scan_cpu_seconds_total", "CPU time of the scans of all processes.", lambda c: c.seconds
    ),
    _scan.gauge(
        "gpugauge_host_processes_denied",
        "Processes that may have loaded torch but cannot be read without root or CAP_SYS_PTRACE.",
        lambda c: c.denied,
    ),
    _scan.gauge(
        "gpugauge_host_processes_left_out",
        "Processes on GPUs or with torch that are not exported because there are too many.",
        lambda c: c.left_out,
    ),
)


class HostCollector(RegisteredCollector):
    """Rows by process, new with every scan."""

    name = "host"
    metrics = PROCESSES + SCAN

    def __init__(
        self, procfs: Procfs, workloads: Workloads | None = None, cpu_clock: Callable[[], float] | None = None
    ) -> None:
        self._scan = HostScan(procfs, workloads)
        self._clock = cpu_clock or procfs.cpu_seconds
        self._background: Background[tuple[Section, dict[str, HostProcess]]] = Background("host")
        self._hosts: dict[str, HostProcess] = {}
        self._due = 0.0
        self._section = Section(self.name, ())

    @classmethod
    def create(cls, sources: Sources) -> HostCollector:
        """Return a collector of the node's processes."""
        return cls(sources.procfs, sources.workloads)

    def collect(self, tick: Tick) -> Section:
        """Return the result of the last scan; start a new scan when it is due. Raises HostError while a scan hangs."""
        running = self._background.running
        if running is None and tick.monotonic >= self._due:
            self._due = tick.monotonic + _INTERVAL_SECONDS
            pids = {p.pid for d in tick.driver.devices if d.up for p in d.reading.processes or ()}
            self._background.start(lambda: self._run_scan(pids, tick.monotonic))
        elif running is not None and running > _HANGING_SECONDS:
            raise HostError(f"a process hangs inside the kernel: reading it has taken {running:.0f} s so far")
        self._section, self._hosts = self._background.take() or (self._section, self._hosts)
        tick.node.hosts = self._hosts
        return self._section

    def _run_scan(self, pids: set[int], now: float) -> tuple[Section, dict[str, HostProcess]]:
        """Return the section of a new scan, and its processes; runs in the background."""
        begin = self._clock()
        # The next scan changes its processes while others read these.
        found = {p.process: replace(p) for p in self._scan.scan(pids, now)}
        subjects: list[tuple[LabelValues, HostProcess]] = [((name,), p) for name, p in found.items()]
        processes = families(PROCESSES, subjects)
        spent = self._clock() - begin
        self._scan.seconds += spent
        self._due = max(self._due, now + spent / _MAX_CPU_SHARE)
        return Section(self.name, processes + families(SCAN, [((), self._scan)])), found
