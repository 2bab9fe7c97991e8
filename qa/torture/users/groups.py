"""Cgroups: one for each user, by which the daemon identifies processes, and one with limits for the daemon. As under
systemd, the daemon and all users together have the same weight for the CPUs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _mounts() -> Iterator[tuple[Path, str, set[str]]]:
    """Yield folder, type and options of each mounted cgroup file system."""
    for line in _MOUNTS.read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()[:3]
        if kind in {"cgroup", "cgroup2"}:
            yield Path(left.split()[4]), kind, set(options.split(","))


def _hierarchy(controller: str) -> tuple[Path, str]:
    """Return the folder in which a cgroup with this controller is made, and cgroup or cgroup2. Raises OSError."""
    for folder, kind, options in _mounts():
        if kind == "cgroup2":
            if not controller:
                return folder, kind
            if controller in (folder / "cgroup.controllers").read_text().split():
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                return folder, kind
        elif controller in options:
            lines = (line.split(":", 2) for line in _OWN.read_text().splitlines())
            own = next(path for _, controllers, path in lines if controller in controllers.split(","))
            return folder / own[1:], kind
    raise OSError(0, f"no cgroup file system with {controller or 'cgroup2'} is mounted")


@contextlib.contextmanager
def cgroup(name: str, users: Path | None = None) -> Iterator[Path]:
    """Make a cgroup without limits, below that of all users if it is in the same hierarchy; yield the file that a
    process writes its pid to. Raises OSError.
    """
    parent, _ = _hierarchy("")
    if users and users.is_relative_to(parent):
        parent = users.parent
    folder = parent / name
    folder.mkdir()
    try:
        yield folder / "cgroup.procs"
    finally:
        _remove(folder)


@contextlib.contextmanager
def users_cgroup(name: str) -> Iterator[Path]:
    """Make a cgroup with the weight of a slice; yield the file that a process writes its pid to. Raises OSError."""
    hierarchy, kind = _hierarchy("cpu")
    folder = hierarchy / name
    folder.mkdir()
    _set_weight(folder, kind)
    try:
        yield folder / "cgroup.procs"
    finally:
        _remove(folder)


def _set_weight(folder: Path, kind: str) -> None:
    name, default = ("cpu.weight", 100) if kind == "cgroup2" else ("cpu.shares", 1024)
    (folder / name).write_text(str(default))


def joined(files: Iterable[Path], command: Sequence[str]) -> list[str]:
    """Return a command that joins cgroups and then runs another; `files` are those to write its pid to."""
    written = " ".join(map(str, files))
    return ["sh", "-c", f'for f in {written}; do echo $$ > "$f" || exit 1; done; exec "$@"', "sh", *command]


class Limited:
    """Cgroups with limits of memory and tasks, and the weight of a slice, for a daemon and its children."""

    def __init__(self, name: str, memory: int, tasks: int) -> None:
        self._folders: list[Path] = []
        self.memory, self._memory_kind = self._make("memory", name)
        self.tasks, _ = self._make("pids", name)
        (self.tasks / "pids.max").write_text(str(tasks))
        self._set_memory(memory)
        _set_weight(*self._make("cpu", name))

    def _make(self, controller: str, name: str) -> tuple[Path, str]:
        hierarchy, kind = _hierarchy(controller)
        folder = hierarchy / name
        if folder not in self._folders:
            folder.mkdir()
            self._folders.append(folder)
        return folder, kind

    def _set_memory(self, limit: int) -> None:
        name = "memory.max" if self._memory_kind == "cgroup2" else "memory.limit_in_bytes"
        (self.memory / name).write_text(str(limit))

    def join(self, command: Sequence[str]) -> list[str]:
        """Return a command that joins the cgroups and then runs another."""
        return joined((folder / "cgroup.procs" for folder in self._folders), command)

    def memory_events(self) -> dict[str, int]:
        """Return counts of events: `oom_kill` is the number of processes that the kernel has killed."""
        name = "memory.events" if self._memory_kind == "cgroup2" else "memory.oom_control"
        pairs = (line.split() for line in (self.memory / name).read_text().splitlines())
        return {key: int(value) for key, value in pairs}

    def task_count(self) -> int:
        """Return the number of processes and threads, also of those that have lost their parent."""
        return int((self.tasks / "pids.current").read_text())

    def refused_tasks(self) -> int:
        """Return how many processes and threads could not be started because of the limit."""
        return int((self.tasks / "pids.events").read_text().split()[1])

    def close(self) -> None:
        """Remove the cgroups, when their processes have ended."""
        for folder in self._folders:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a cgroup. Killed processes leave it a little later."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.05)
    folder.rmdir()


def processes(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += processes(int(child))
    return found


def memory_of(pids: list[int]) -> tuple[float, float]:
    """Return the proportional and the resident memory of processes, in MiB."""
    proportional = resident = 0.0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            proportional += int(rollup.partition("\nPss:")[2].split()[0]) / 1024
            resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / (1 << 20)
    return proportional, resident
