"""One look at all processes of the machine: which have torch mapped, and how those and the GPU's get on."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpugauge.workload import processfiles as hostfiles
from gpugauge.workload.command import is_helper
from gpugauge.workload.identity import Workload, clean
from gpugauge.workload.owners import shows_machine, uptime
from gpugauge.workload.processfiles import Cgroup, Stat
from gpugauge.workload.procfs import Procfs, process_hash
from gpugauge.workload.workloads import Workloads

# A program imports torch within this time of its start, if it ever does; its maps are not read again after that.
_YOUNG_SECONDS = 180.0
# Until then they are read each time that it has grown older by this much of its age.
_OLDER = 1 / 3
# What hardly changes or takes long to read is read this often; so are processes that have nothing to do with the GPUs.
_SLOW_SECONDS = 60.0
_MOST = 1024  # processes that are told about
_COMPILER = b"torch._inductor.compile_worker"


@dataclass(slots=True)
class HostProcess:
    """A process that uses a GPU or has torch mapped; what cannot be read is None."""

    process: str
    pid: int
    stat: Stat
    torch: str = ""  # the build: cpu, cuda or rocm
    container_pid: int | None = None
    visible_devices: str | None = None
    workload: Workload = field(default_factory=Workload)
    main_cpu: float | None = None
    children_cpu: float = 0.0
    uninterruptible: float = 0.0
    io: dict[str, int] | None = None
    affinity: int | None = None
    device_files: int | None = None
    cgroup: Cgroup = field(default_factory=lambda: Cgroup(None, None, {}))
    folders: tuple[Path | None, Path | None] = (None, None)
    scanned: float | None = None
    read_slowly: float = float("-inf")


@dataclass(slots=True)
class _Known:
    """What was found out about a pid; the start in `stat` tells it from the next one that has the pid."""

    stat: Stat
    inode: int  # of its folder: another process with the same pid has another
    read: float  # when `stat` was
    first_seen: float
    torch: str | None = None  # None before the first look
    looked: float = 0.0
    denied: bool = False
    command: bytes | None = None

    def wants_look(self, now: float) -> bool:
        """Whether it may have mapped torch since the last look."""
        age, before = now - self.first_seen, self.looked - self.first_seen
        return self.torch is None or (not self.torch and age < _YOUNG_SECONDS and age >= (1 + _OLDER) * before)


class HostScan:
    """Looks at /proc whenever scan() is called. Reading maps or command lines can block on a process that hangs inside
    the kernel: never call it from a thread that others wait for.
    """

    def __init__(self, procfs: Procfs, workloads: Workloads | None = None) -> None:
        self._procfs, self._workloads = procfs, workloads
        self._driver_pids_are_ours = shows_machine(procfs.root)
        self._known: dict[int, _Known] = {}
        self._near: set[int] = set()  # pids of the processes told about, and of their descendants
        self._processes: dict[str, HostProcess] = {}
        self.denied = 0  # processes whose maps may not be read
        self.left_out = 0  # processes beyond the most that are told about

    def scan(self, gpu_pids: Collection[int], now: float) -> tuple[HostProcess, ...]:
        """Return the processes on GPUs and those with torch; `now` in monotonic seconds."""
        self._near.update(gpu_pids)
        self._find(now)
        self.denied = sum(known.denied for known in self._known.values())
        stats = {pid: known.stat for pid, known in self._known.items()}
        on_gpu = [pid for pid in gpu_pids if pid in stats] if self._driver_pids_are_ours else []
        with_torch = [pid for pid, known in self._known.items() if known.torch and not self._is_worker(pid, stats)]
        chosen = list(dict.fromkeys([*on_gpu, *with_torch]))
        self.left_out = max(0, len(chosen) - _MOST)
        chosen = chosen[:_MOST]
        children = _children(stats, frozenset(chosen))
        groups: dict[tuple[Path | None, Path | None], Cgroup] = {}
        before, self._processes, self._near = self._processes, {}, set(chosen)
        for pid in chosen:
            process = self._process(pid, stats[pid], before)
            self._read(process, now, groups)
            offspring = [*children(pid)]
            self._near.update(offspring)
            live = sum(stats[child].cpu + stats[child].reaped_cpu for child in offspring)
            # A child that nobody waited for takes its time along; a counter does not fall for that.
            process.children_cpu = max(process.children_cpu, process.stat.reaped_cpu + live)
            self._processes[process.process] = process
        return tuple(self._processes.values())

    def _find(self, now: float) -> None:
        """Read every process that is new or near a GPU, the others from time to time, and see who has mapped torch."""
        running = uptime(self._procfs.root)
        before, self._known = self._known, {}
        with os.scandir(self._procfs.root) as entries:
            for entry in entries:
                if not entry.name.isdigit():
                    continue
                pid, inode = int(entry.name), entry.inode()
                known = before.get(pid)
                if known is None or known.inode != inode or pid in self._near or now - known.read >= _SLOW_SECONDS:
                    stat = hostfiles.stat(self._procfs, pid)
                    if stat is None:
                        continue
                    if known is None or known.stat.start != stat.start:
                        age = 0.0 if running is None else max(0.0, running - stat.start / hostfiles.TICKS)
                        known = _Known(stat, inode, now, now - age)
                    known.stat, known.inode, known.read = stat, inode, now
                self._known[pid] = known
                if known.wants_look(now):
                    self._look(pid, known, now)

    def _look(self, pid: int, known: _Known, now: float) -> None:
        known.looked = now
        try:
            known.torch = hostfiles.torch_build(self._procfs, pid)
        except OSError as error:
            known.torch, known.denied = "", isinstance(error, PermissionError)

    def _is_worker(self, pid: int, stats: dict[int, Stat]) -> bool:
        """Tell whether a process with torch works for another one: a data loader's or compiler's, forked or spawned."""
        command = self._command(pid)
        if is_helper(command.split(b"\0")) or _COMPILER in command:
            return True
        parent = stats[pid].parent
        mother = self._known.get(parent)
        return mother is not None and bool(mother.torch) and self._command(parent) == command

    def _command(self, pid: int) -> bytes:
        known = self._known[pid]
        if known.command is None:
            try:
                known.command = self._procfs.read(pid, "cmdline", 8192)
            except OSError:
                known.command = b""
        return known.command

    def _process(self, pid: int, stat: Stat, before: dict[str, HostProcess]) -> HostProcess:
        name = process_hash(self._procfs.boot_id, str(pid), str(stat.start))
        process = before.get(name)
        if process is None:
            process = HostProcess(name, pid, stat)
        process.stat, process.torch = stat, self._known[pid].torch or ""
        return process

    def _read(self, process: HostProcess, now: float, groups: dict[tuple[Path | None, Path | None], Cgroup]) -> None:
        """Bring a process up to date."""
        pid = process.pid
        if process.stat.state == "D" and process.scanned is not None:
            process.uninterruptible += now - process.scanned
        process.scanned = now
        main = hostfiles.stat(self._procfs, pid, f"task/{pid}/stat")
        process.main_cpu = main.cpu if main else None
        process.io = hostfiles.io_bytes(self._procfs, pid)
        if now - process.read_slowly >= _SLOW_SECONDS:
            process.read_slowly = now
            self._read_slowly(process)
        if process.folders not in groups:
            groups[process.folders] = hostfiles.cgroup(*process.folders)
        process.cgroup = groups[process.folders]

    def _read_slowly(self, process: HostProcess) -> None:
        pid = process.pid
        process.affinity = hostfiles.affinity(self._procfs, pid)
        process.device_files = hostfiles.device_files(self._procfs, pid)
        if process.visible_devices is None:
            devices = hostfiles.visible_devices(self._procfs, pid)
            # Set to nothing it hides every GPU, which is not the same as not being set.
            process.visible_devices = None if devices is None else clean(devices) or "none"
        if self._workloads:
            process.workload = self._workloads.of(pid, start=process.stat.start)
            process.container_pid = self._workloads.container_pid(pid, start=process.stat.start)
            folder = self._workloads.cgroup_directory
            process.folders = (folder(pid, "cpu"), folder(pid, "memory"))


def _children(stats: dict[int, Stat], apart: frozenset[int]) -> Callable[[int], Iterator[int]]:
    """Return what lists all living descendants of a pid, without those of `apart` and their own."""
    by_parent: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        by_parent.setdefault(stat.parent, []).append(pid)

    def descendants(pid: int) -> Iterator[int]:
        waiting = [pid]
        for parent in waiting:
            for child in by_parent.get(parent, ()):
                if child not in apart and child != parent:
                    yield child
                    waiting.append(child)

    return descendants
