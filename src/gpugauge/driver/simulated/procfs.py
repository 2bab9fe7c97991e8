"""A small /proc for the processes of a scenario, so that code which reads a proc file system runs on it unchanged."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path

from gpugauge.driver.simulated.model import Scenario
from gpugauge.driver.simulated.world import UPTIME, Process, World

_TICKS = os.sysconf("SC_CLK_TCK")


class ProcTree:
    """Keeps a folder in step with a scenario; the folder is the caller's and should begin empty."""

    def __init__(self, root: Path, scenario: Scenario) -> None:
        self._root = root
        self._world = World(scenario.simulation())
        self._shown: set[int] = set()
        self._write_machine()

    def update(self, now: float) -> None:
        """Show the processes that are alive at a time of CLOCK_MONOTONIC. Raises OSError."""
        t = self._world.second(now)
        alive = {p.pid: p for p in self._world.processes if p.activity.alive(t)}
        for pid in self._shown - alive.keys():
            shutil.rmtree(self._root / str(pid))
        for pid in alive.keys() - self._shown:
            self._write_process(alive[pid])
        self._shown = set(alive)

    def _write_machine(self) -> None:
        random = self._root / "sys/kernel/random"
        random.mkdir(parents=True, exist_ok=True)
        boot_id = uuid.UUID(bytes=hashlib.sha256(self._world.name.encode()).digest()[:16])
        (random / "boot_id").write_text(f"{boot_id}\n")
        (self._root / "stat").write_text(f"cpu  0 0 0 0 0 0 0 0 0 0\nbtime {int(self._world.start_unix - UPTIME)}\n")

    def _write_process(self, process: Process) -> None:
        """Write beside, then rename: a reader never meets half a process."""
        folder = self._root / f".{process.pid}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        name = Path(process.command[0]).name[:15]
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(_strings(process.command))
        (folder / "environ").write_bytes(_strings([f"{key}={value}" for key, value in process.environment.items()]))
        (folder / "cgroup").write_text(f"0::{process.cgroup}\n" if process.cgroup.startswith("/") else process.cgroup)
        (folder / "stat").write_text(_stat(process, name))
        (folder / "status").write_text(_status(process, name))
        folder.rename(self._root / str(process.pid))


def _strings(strings: list[str]) -> bytes:
    """Each ended by a NUL, as the kernel keeps them."""
    return b"".join(s.encode() + b"\0" for s in strings)


def _stat(process: Process, name: str) -> str:
    """The 52 fields of proc_pid_stat(5); unknown ones are 0."""
    fields: list[object] = [0] * 52
    fields[0], fields[1], fields[2], fields[3] = process.pid, f"({name})", "S", 1
    fields[4] = fields[5] = process.pid
    fields[19] = 1  # threads
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
