"""The doubles of /proc and of the kernel log: files of a scenario, which code that reads real ones reads unchanged."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpugauge.simulator.device.activity import Pod
from gpugauge.simulator.device.pipeline import observe
from gpugauge.simulator.device.world import UPTIME, Process, World
from gpugauge.simulator.scenario.model import Scenario
from gpugauge.workload.command import is_python

_MAJOR_FAULTS_PER_SECOND = 200.0  # while it waits for pages
_QUOTA_PERIOD_MICROSECONDS = 100_000  # in cpu.max


@dataclass(frozen=True)
class Figures:
    """Totals until a second of the scenario, in seconds unless a comment has another unit."""

    main: float = 0.0  # CPU time of the main thread
    workers: float = 0.0  # CPU time of loader workers, as ended children: they start again in every epoch
    throttled: float = 0.0
    stalled: float = 0.0  # waits for memory or storage
    faults: int = 0
    cpus: float | None = None  # the CPU quota


def figures(process: Process, t: float) -> Figures:
    """Return the totals of a process; zeros for one without a pipeline."""
    activity = process.activity
    p = activity.pipeline
    if p is None:
        return Figures()
    observed, seconds = observe(p), activity.rhythm.progress(t)
    return Figures(
        main=p.thread_cpu / observed.step * seconds,
        workers=(p.cpu_seconds - p.thread_cpu) / observed.step * seconds,
        throttled=observed.cpu_throttled * seconds,
        stalled=observed.memory_pressure * seconds,
        faults=round(p.paging * _MAJOR_FAULTS_PER_SECOND * seconds),
        cpus=p.cpu_seconds / observed.step if p.cpu_quota < 1.0 else None,
    )


def cgroup_folder(root: Path, process: Process) -> Path | None:
    """Return the folder of the cgroup of a process below `root`; None for a path out of `root`, and for cgroup v1."""
    path = PurePosixPath(process.cgroup)
    return root / path.relative_to("/") if path.is_absolute() and ".." not in path.parts else None


def cgroup_files(found: list[Figures]) -> dict[str, str]:
    """Return the files of a cgroup for the totals of its processes. Throttling and pressure are the highest of them."""
    throttled, stalled = (max(figure) for figure in zip(*((f.throttled, f.stalled) for f in found), strict=True))
    used = sum(f.main + f.workers for f in found)
    quotas = [f.cpus for f in found if f.cpus is not None]
    quota = f"{round(sum(quotas) * _QUOTA_PERIOD_MICROSECONDS)}" if quotas else "max"
    return {
        "cpu.stat": f"usage_usec {round(used * 1e6)}\nthrottled_usec {round(throttled * 1e6)}\n",
        "cpu.max": f"{quota} {_QUOTA_PERIOD_MICROSECONDS}\n",
        "cpu.pressure": _pressure(throttled),
        "memory.pressure": _pressure(stalled),
        "io.pressure": _pressure(stalled),
    }


def _pressure(seconds: float) -> str:
    total = round(seconds * 1e6)
    return "".join(f"{share} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n" for share in ("some", "full"))


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESIDENT, _MAPPED = 6 << 30, 2 << 30  # memory of a training on the host, and the part of it that files back
# The mapped libraries of a process that trains with a CUDA build of torch.
_LIBRARIES = ("libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10_cuda.so")


class ProcTree:
    """Writes the processes of a scenario into an empty folder; `cgroup` has the cgroups, `log` the entries of pods."""

    def __init__(self, root: Path, scenario: Scenario) -> None:
        self._root, self.cgroup_root, self.pod_logs = root, root / "cgroup", root / "log"
        self._world = World(scenario.simulation())
        self._written: set[int] = set()
        self._write_machine()

    def update(self, now: float) -> None:
        """Write the processes that are alive at a time of CLOCK_MONOTONIC. Raises OSError."""
        t = self._world.second(now)
        alive = {p.pid: p for p in self._world.processes if p.activity.alive(t)}
        launchers = {p.launcher: p for p in alive.values() if p.launcher is not None}
        for pid in self._written - alive.keys() - launchers.keys():
            shutil.rmtree(self._root / str(pid))
        for pid in launchers.keys() - self._written:
            # It has started the ranks of a training, and has neither torch nor environment.
            command = ["torchrun", *launchers[pid].command[1:]]
            self._begin(launchers[pid], pid, 1, command, Figures()).rename(self._root / str(pid))
        counted = {pid: figures(process, t) for pid, process in alive.items()}
        for pid, process in alive.items():
            if pid not in self._written:
                self._write_process(process, counted[pid])
            elif process.activity.pipeline:
                text = _stat(process, _name(process.command), counted[pid], pid, process.launcher or 1)
                for place in ("stat", f"task/{pid}/stat"):
                    _replace(self._root / str(pid) / place, text)
        self._written = alive.keys() | launchers.keys()
        self._write_cgroups([(process, counted[pid]) for pid, process in alive.items() if process.activity.pipeline])

    def _write_machine(self) -> None:
        random = self._root / "sys/kernel/random"
        random.mkdir(parents=True, exist_ok=True)
        boot_id = uuid.UUID(bytes=hashlib.sha256(self._world.name.encode()).digest()[:16])
        (random / "boot_id").write_text(f"{boot_id}\n")
        (random.parent / "hostname").write_text(f"{self._world.host}\n")
        for folder in ("pods", "containers"):
            (self.pod_logs / folder).mkdir(parents=True, exist_ok=True)
        (self._root / "stat").write_text(f"cpu  0 0 0 0 0 0 0 0 0 0\nbtime {int(self._world.start_unix - UPTIME)}\n")

    def _write_process(self, process: Process, counted: Figures) -> None:
        """Write a folder and rename it, so that a reader never finds an incomplete process."""
        folder = self._begin(process, process.pid, process.launcher or 1, process.command, counted)
        (folder / "environ").write_bytes(_strings([f"{key}={value}" for key, value in process.environment.items()]))
        if process.activity.pipeline:
            task = folder / "task" / str(process.pid)
            task.mkdir(parents=True)
            shutil.copyfile(folder / "stat", task / "stat")
            (folder / "statm").write_text(f"{2 * _RESIDENT // _PAGE} {_RESIDENT // _PAGE} {_MAPPED // _PAGE} 1 0 1 0\n")
        if _has_torch(process):
            lines = [f"7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /opt/torch/lib/{name}" for name in _LIBRARIES]
            (folder / "maps").write_text("\n".join(lines) + "\n")
        folder.rename(self._root / str(process.pid))
        if process.pod:
            self._write_pod(process.pod)

    def _begin(self, process: Process, pid: int, parent: int, command: list[str], counted: Figures) -> Path:
        folder, name = self._root / f".{pid}", _name(command)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(_strings(command))
        (folder / "cgroup").write_text(f"0::{process.cgroup}\n" if process.cgroup.startswith("/") else process.cgroup)
        (folder / "status").write_text(_status(process, name, pid, parent))
        (folder / "stat").write_text(_stat(process, name, counted, pid, parent))
        return folder

    def _write_pod(self, pod: Pod) -> None:
        (self.pod_logs / "pods" / f"{pod.namespace}_{pod.name}_{pod.uid}").mkdir(exist_ok=True)
        log = self.pod_logs / "containers" / f"{pod.name}_{pod.namespace}_{pod.container}-{pod.container_id}.log"
        log.touch()

    def _write_cgroups(self, trainings: list[tuple[Process, Figures]]) -> None:
        groups: dict[Path, list[Figures]] = {}
        for process, counted in trainings:
            folder = cgroup_folder(self.cgroup_root, process)
            if folder is not None:
                groups.setdefault(folder, []).append(counted)
        for folder, members in groups.items():
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in cgroup_files(members).items():
                _replace(folder / name, text)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically: a reader finds the old or the new content."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.rename(path)


def _strings(strings: list[str]) -> bytes:
    return b"".join(s.encode() + b"\0" for s in strings)


def _name(command: list[str]) -> str:
    return Path(command[0]).name[:15]


def _has_torch(process: Process) -> bool:
    """Return whether a process has torch mapped: a training, and another Python program that computes on a GPU."""
    if process.activity.pipeline:
        return True
    return process.kind == "compute" and is_python([word.encode() for word in process.command])


def _stat(process: Process, name: str, counted: Figures, pid: int, parent: int) -> str:
    """Return the 52 fields of proc_pid_stat(5); fields without a value are 0."""
    fields: list[object] = [0] * 52
    fields[0], fields[1], fields[2], fields[3] = pid, f"({name})", "S", parent
    fields[4] = fields[5] = pid
    fields[19] = 1  # threads
    # majflt, utime, cutime
    fields[11], fields[13], fields[15] = counted.faults, round(counted.main * _TICKS), round(counted.workers * _TICKS)
    fields[23] = (_RESIDENT if process.activity.pipeline else _MAPPED) // _PAGE
    fields[21] = round((UPTIME + process.activity.start) * _TICKS)  # start, ticks after boot
    return " ".join(map(str, fields)) + "\n"


def _cpus(listed: str | None) -> dict[str, str]:
    if listed is None:
        return {}
    mask = 0
    for part in listed.split(","):
        first, _, last = part.partition("-")
        mask |= sum(1 << cpu for cpu in range(int(first), int(last or first) + 1))
    return {"Cpus_allowed": f"{mask:x}", "Cpus_allowed_list": listed}


def _status(process: Process, name: str, pid: int, parent: int) -> str:
    ids = "\t".join([str(process.uid)] * 4)
    pids = [pid, *([] if process.container_pid is None else [process.container_pid])]
    lines = {
        "Name": name,
        "State": "S (sleeping)",
        "Tgid": pid,
        "Pid": pid,
        "PPid": parent,
        "Uid": ids,
        "Gid": ids,
        "NSpid": "\t".join(map(str, pids)),
        "VmSwap": f"{process.swapped >> 10} kB",
        "Threads": 1,
        **_cpus(process.cpus),
    }
    return "".join(f"{key}:\t{value}\n" for key, value in lines.items())


def kernel_log(scenario: Scenario) -> str:
    """Return the Xid errors from before the start as /dev/kmsg has them; NVML reports the later ones."""
    world = World(scenario.simulation())
    start = time.monotonic() - world.now()
    errors = sorted((at, device.bus_id, xid) for device in world.devices for at, xid in device.health.xids if at < 0)
    # The kernel writes the domain with four digits, and no function. A machine may have started after the error.
    return "".join(
        f"4,{i},{max(i + 1, round(1e6 * (start + at)))},-;NVRM: Xid (PCI:{bus_id[4:-2].lower()}): {xid}, simulated\n"
        for i, (at, bus_id, xid) in enumerate(errors)
    )
