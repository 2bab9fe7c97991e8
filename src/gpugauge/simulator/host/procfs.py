"""The double of /proc: files for the processes of a scenario, which code that reads /proc reads unchanged."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path

from gpugauge.simulator.device.world import UPTIME, Process, World
from gpugauge.simulator.host.procfigures import Figures, cgroup_files, cgroup_folder, figures
from gpugauge.simulator.scenario.model import Scenario

_TICKS = os.sysconf("SC_CLK_TCK")
# The mapped libraries of a process that trains with a CUDA build of torch.
_LIBRARIES = ("libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10_cuda.so")


class ProcTree:
    """Writes the processes of a scenario into an empty folder of the caller. Its subfolder `cgroup` has the cgroups of
    the trainings, as in the cgroup file system.
    """

    def __init__(self, root: Path, scenario: Scenario) -> None:
        self._root, self.cgroup_root = root, root / "cgroup"
        self._world = World(scenario.simulation())
        self._written: set[int] = set()
        self._write_machine()

    def update(self, now: float) -> None:
        """Write the processes that are alive at a time of CLOCK_MONOTONIC. Raises OSError."""
        t = self._world.second(now)
        alive = {p.pid: p for p in self._world.processes if p.activity.alive(t)}
        for pid in self._written - alive.keys():
            shutil.rmtree(self._root / str(pid))
        counted = {pid: figures(process, t) for pid, process in alive.items()}
        for pid, process in alive.items():
            if pid not in self._written:
                self._write_process(process, counted[pid])
            elif process.activity.pipeline:
                self._write_stat(self._root / str(pid), process, counted[pid])
        self._written = set(alive)
        self._write_cgroups([(process, counted[pid]) for pid, process in alive.items() if process.activity.pipeline])

    def _write_machine(self) -> None:
        random = self._root / "sys/kernel/random"
        random.mkdir(parents=True, exist_ok=True)
        boot_id = uuid.UUID(bytes=hashlib.sha256(self._world.name.encode()).digest()[:16])
        (random / "boot_id").write_text(f"{boot_id}\n")
        (self._root / "stat").write_text(f"cpu  0 0 0 0 0 0 0 0 0 0\nbtime {int(self._world.start_unix - UPTIME)}\n")

    def _write_process(self, process: Process, counted: Figures) -> None:
        """Write a folder and rename it, so that a reader never finds an incomplete process."""
        folder = self._root / f".{process.pid}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        name = Path(process.command[0]).name[:15]
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(_strings(process.command))
        (folder / "environ").write_bytes(_strings([f"{key}={value}" for key, value in process.environment.items()]))
        (folder / "cgroup").write_text(f"0::{process.cgroup}\n" if process.cgroup.startswith("/") else process.cgroup)
        (folder / "status").write_text(_status(process, name))
        if process.activity.pipeline:
            (folder / "task" / str(process.pid)).mkdir(parents=True)
            lines = [f"7f0000000000-7f0000001000 r-xp 00000000 08:01 42 /opt/torch/lib/{name}" for name in _LIBRARIES]
            (folder / "maps").write_text("\n".join(lines) + "\n")
        self._write_stat(folder, process, counted)
        folder.rename(self._root / str(process.pid))

    def _write_stat(self, folder: Path, process: Process, counted: Figures) -> None:
        text = _stat(process, Path(process.command[0]).name[:15], counted)
        _replace(folder / "stat", text)
        if process.activity.pipeline:
            _replace(folder / "task" / str(process.pid) / "stat", text)

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
    """Return strings that are terminated by NUL each, as the kernel writes them."""
    return b"".join(s.encode() + b"\0" for s in strings)


def _stat(process: Process, name: str, counted: Figures) -> str:
    """Return the 52 fields of proc_pid_stat(5); fields without a value are 0."""
    fields: list[object] = [0] * 52
    fields[0], fields[1], fields[2], fields[3] = process.pid, f"({name})", "S", 1
    fields[4] = fields[5] = process.pid
    fields[19] = 1  # threads
    for number, value in counted.stat().items():
        fields[number] = value
    fields[21] = round((UPTIME + process.activity.start) * _TICKS)  # start, ticks after boot
    return " ".join(map(str, fields)) + "\n"


def _status(process: Process, name: str) -> str:
    ids = "\t".join([str(process.uid)] * 4)
    pids = [process.pid, *([] if process.container_pid is None else [process.container_pid])]
    lines = {
        "Name": name,
        "State": "S (sleeping)",
        "Tgid": process.pid,
        "Pid": process.pid,
        "PPid": 1,
        "Uid": ids,
        "Gid": ids,
        "NSpid": "\t".join(map(str, pids)),
        "Threads": 1,
    }
    return "".join(f"{key}:\t{value}\n" for key, value in lines.items())
