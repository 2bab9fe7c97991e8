"""Scan of all processes of the machine: finds those with torch mapped and reads the figures of those and of the
processes on GPUs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpugauge.workload import processfiles
from gpugauge.workload.command import is_helper
from gpugauge.workload.identity import clean
from gpugauge.workload.processfiles import Cgroup, HostProcess
from gpugauge.workload.procfs import TICKS_PER_SECOND, Procfs, Stat, process_hash
from gpugauge.workload.registry import Identity, Want
from gpugauge.workload.workloads import Workloads

# Programs import torch within this time after their start. The maps of older processes are not read again.
_TORCH_IMPORT_SECONDS = 180.0
# Until then, maps are read again when the age of the process has grown by this share.
_AGE_GROWTH = 1 / 3
# Interval for files that rarely change or take long to read, and for processes that do not use a GPU.
_SLOW_SECONDS = 60.0
_MAX_PROCESSES = 1024  # that are exported
_COMPILER = b"torch._inductor.compile_worker"


@dataclass(slots=True)
class _Known:
    """Facts about a pid. The start time in `stat` distinguishes the process from a later one with the same pid."""

    stat: Stat
    inode: int  # of its folder in /proc; differs for a later process with the same pid
    read: float  # monotonic time at which `stat` was read
    started: float  # monotonic time
    torch: str | None = None  # build, see HostProcess; None before the maps were read
    maps_read: float = 0.0  # monotonic time
    denied: bool = False
    command: bytes | None = None
    worker: bool = False

    def is_maps_due(self, now: float) -> bool:
        """Return whether the process may have mapped torch since its maps were read."""
        if self.torch is None:
            return True
        age, age_at_read = now - self.started, self.maps_read - self.started
        return not self.torch and age < _TORCH_IMPORT_SECONDS and age >= (1 + _AGE_GROWTH) * age_at_read


class HostScan:
    """Reads /proc when scan() is called, which can block: call it only in a thread that no other waits for."""

    def __init__(self, procfs: Procfs, workloads: Workloads | None = None) -> None:
        self._procfs, self._workloads = procfs, workloads
        self._shows_driver_pids = procfs.shows_machine()
        self._known: dict[int, _Known] = {}
        self._near: set[int] = set()  # pids of the exported processes and of their descendants
        self._processes: dict[str, HostProcess] = {}
        self._began = 0.0
        self.seconds = 0.0  # CPU time of all scans, which the caller measures
        self.denied = 0  # processes whose maps are not readable
        self.left_out = 0  # processes above _MAX_PROCESSES

    def scan(self, gpu_pids: Collection[int], now: float) -> tuple[HostProcess, ...]:
        """Return the processes on GPUs and those with torch mapped. `now` is in monotonic seconds."""
        self._began = time.monotonic()  # the scan itself takes time
        self._near.update(gpu_pids)
        self._find(now)
        self.denied = sum(known.denied for known in self._known.values())
        stats = {pid: known.stat for pid, known in self._known.items()}
        on_gpu = [pid for pid in gpu_pids if pid in stats] if self._shows_driver_pids else []
        with_torch = [pid for pid, known in self._known.items() if known.torch and not self._is_worker(pid, stats)]
        chosen = list(dict.fromkeys([*on_gpu, *with_torch]))
        self.left_out = max(0, len(chosen) - _MAX_PROCESSES)
        if self.left_out:
            chosen = [*on_gpu, *self._in_turn([pid for pid in with_torch if pid not in on_gpu])][:_MAX_PROCESSES]
        children = _children(stats, frozenset(chosen))
        groups: dict[tuple[Path | None, Path | None], Cgroup] = {}
        available = processfiles.memory_available(self._procfs) if chosen else None
        before, self._processes, self._near = self._processes, {}, set(chosen)
        names = {process_hash(self._procfs.boot_id, str(pid), str(stats[pid].start)): pid for pid in sorted(chosen)}
        if self._workloads:
            self._workloads.registry.want("host", {name: Want(pid, stats[pid].start) for name, pid in names.items()})
        for name, pid in names.items():
            process = before.get(name) or HostProcess(name, pid, stats[pid])
            process.stat, process.torch = stats[pid], self._known[pid].torch or ""
            self._read(process, now, groups)
            limits = [limit for limit in (available, process.cgroup.memory_left) if limit is not None]
            process.memory_available = min(limits, default=None)
            offspring = [*children(pid)]
            self._near.update(offspring)
            live = sum(stats[child].cpu + stats[child].reaped_cpu for child in offspring)
            # The time of a child that was not waited for disappears with it; the counter must not decrease.
            process.children_cpu = max(process.children_cpu, process.stat.reaped_cpu + live)
            self._read_memory(process, [stats[child] for child in offspring], offspring)
            self._processes[name] = process
        return tuple(self._processes.values())

    def _find(self, now: float) -> None:
        """Read every process that is new or near a GPU, the others every minute, and find those with torch mapped."""
        uptime = self._procfs.uptime()
        before, self._known = self._known, {}
        with os.scandir(self._procfs.root) as entries:
            for entry in entries:
                if not entry.name.isdigit():
                    continue
                pid, inode = int(entry.name), entry.inode()
                known = before.get(pid)
                if known is None or known.inode != inode or pid in self._near or now - known.read >= _SLOW_SECONDS:
                    stat = self._procfs.stat(pid)
                    if stat is None:
                        continue
                    if known is None or known.stat.start != stat.start:
                        age = 0.0 if uptime is None else max(0.0, uptime - stat.start / TICKS_PER_SECOND)
                        known = _Known(stat, inode, now, now - age)
                    known.stat, known.inode, known.read = stat, inode, now
                self._known[pid] = known
                if known.is_maps_due(now):
                    self._read_maps(pid, known, now)

    def _read_maps(self, pid: int, known: _Known, now: float) -> None:
        known.maps_read = now
        try:
            known.torch = processfiles.torch_build(self._procfs, pid)
        except TimeoutError:
            return  # it is read again: another process of its user may be the one that hangs
        except OSError as error:
            known.torch, known.denied = "", isinstance(error, PermissionError)

    def _in_turn(self, pids: list[int]) -> list[int]:
        """Return the pids ordered such that each user has one before any has another, so that none displaces others."""
        seen: Counter[int] = Counter()
        turns = dict[int, int]()
        for pid in pids:
            status = self._procfs.status(pid)
            user = status.uid if status else -1
            turns[pid], seen[user] = seen[user], seen[user] + 1
        return sorted(pids, key=turns.__getitem__)

    def _is_worker(self, pid: int, stats: dict[int, Stat]) -> bool:
        """Return whether a process with torch is a worker of another one: of a data loader or a compiler."""
        command = self._command(pid)
        if is_helper(command.split(b"\0")) or _COMPILER in command:
            return True
        parent = stats[pid].parent
        own, known = self._known[pid], self._known.get(parent)
        # It remains one when it has lost its parent, until it ends, too.
        own.worker |= known is not None and bool(known.torch) and self._command(parent) == command
        return own.worker

    def _command(self, pid: int) -> bytes:
        known = self._known[pid]
        if known.command is None:
            try:
                known.command = self._procfs.read(pid, "cmdline", 8192)
            except TimeoutError:
                return b""
            except OSError:
                known.command = b""
        return known.command

    def _read(self, process: HostProcess, now: float, groups: dict[tuple[Path | None, Path | None], Cgroup]) -> None:
        pid = process.pid
        if process.stat.state == "D" and process.scanned is not None:
            process.uninterruptible += now - process.scanned
        process.scanned = now
        main = self._procfs.stat(pid, f"task/{pid}/stat")
        process.main_cpu = main.cpu if main else None
        process.io = processfiles.io_bytes(self._procfs, pid)
        if now - process.read_slowly >= _SLOW_SECONDS:
            process.read_slowly = now
            self._read_slowly(process)
        if self._workloads:
            who = self._workloads.registry.get(process.process) or Identity()
            process.workload, process.container_pid = who.workload, who.container_pid
        if process.folders not in groups:
            read = now + time.monotonic() - self._began
            groups[process.folders] = processfiles.cgroup(*process.folders)._replace(at=read)
        process.cgroup = groups[process.folders]
        if process.cgroup.used is None:  # v1: at least the process's own
            process.cgroup = process.cgroup._replace(used=process.stat.cpu + process.children_cpu)

    def _read_memory(self, process: HostProcess, offspring: list[Stat], pids: list[int]) -> None:
        process.resident = {"process": process.stat.resident, "children": sum(stat.resident for stat in offspring)}
        own = processfiles.anonymous_bytes(self._procfs, process.pid)
        children = [processfiles.anonymous_bytes(self._procfs, pid) for pid in pids]
        process.anonymous = {} if own is None else {"process": own, "children": sum(filter(None, children))}

    def _read_slowly(self, process: HostProcess) -> None:
        pid = process.pid
        process.bounds = processfiles.bounds(self._procfs, pid)
        process.device_files = processfiles.device_files(self._procfs, pid)
        if process.hook is None:
            process.hook = processfiles.starts_hook(self._procfs, pid)
        if process.visible_devices is None:
            devices = processfiles.visible_devices(self._procfs, pid)
            # An empty value hides every GPU, unlike an unset variable.
            process.visible_devices = None if devices is None else clean(devices) or "none"
        if self._workloads:
            folder = self._workloads.cgroup_directory
            process.folders = (folder(pid, "cpu"), folder(pid, "memory"))


def _children(stats: dict[int, Stat], apart: frozenset[int]) -> Callable[[int], Iterator[int]]:
    """Return a function that yields the living descendants of a pid, without those in `apart` and their descendants."""
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
