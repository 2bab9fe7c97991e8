"""Processes in a proc file system, and the `process` label, which stays unique when a pid is used again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from gpugauge.workload import cgroup
from gpugauge.workload.identity import clean
from gpugauge.workload.intime import InTime, ProcessOwner

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Inode of the initial pid namespace, whose pids the driver reports. PROC_PID_INIT_INO in include/linux/proc_ns.h.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_INITIAL_NAME_NAMESPACE = "uts:[4026531838]"  # PROC_UTS_INIT_INO
_MAX_HOST = 48  # characters of the machine's name
_MAX_BYTES = 262144  # of a file, such as an environment
_MAX_CMDLINE_BYTES = 8192  # enough for the options before the name of a script
# Files of a process that need the lock of its memory, or that of the replacement of its program.
_MAY_HANG = frozenset({"cmdline", "environ", "maps", "io"})


@lru_cache(maxsize=8192)
def process_hash(*facts: str) -> str:
    """Return the `process` label: 12 hex digits of a hash of boot id, pid and start time, or of a hook's session id."""
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


class Stat(NamedTuple):
    """Fields of proc_pid_stat(5)."""

    state: str
    parent: int
    major_faults: int
    cpu: float  # seconds
    reaped_cpu: float  # seconds of children that ended and were waited for
    threads: int
    start: int  # clock ticks after boot
    resident: int  # bytes
    group: int  # pid of the leader of its process group
    session: int  # pid of the leader of its session
    terminal: bool  # whether its session has one


class Status(NamedTuple):
    """Fields of proc_pid_status(5)."""

    uid: int  # real user id
    parent: int
    container_pid: int | None  # pid in the innermost pid namespace, None if that is the namespace of the file system


class Procfs:
    """Reader of a proc file system, possibly the host's mounted elsewhere. Values of a process that ended are None."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = Path(root)
        try:
            self.boot_id = (self.root / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            # Some sandboxes hide it. Start times count from the boot, so that only a reboot can make two labels equal.
            self.boot_id = ""
        self._in_time = InTime()

    def start_time(self, pid: int) -> int | None:
        """Return the start time in clock ticks after boot, None without such a process."""
        try:
            return int(self._stat_fields(pid, "stat")[19])
        except (OSError, ValueError, IndexError):
            return None

    def stat(self, pid: int, file: str = "stat") -> Stat | None:
        """Return the statistics of a process, or with `task/TID/stat` of one of its threads; None if it ended."""
        try:
            f = self._stat_fields(pid, file)
            return Stat(
                state=f[0].decode(),
                parent=int(f[1]),
                major_faults=int(f[9]),
                cpu=(int(f[11]) + int(f[12])) / TICKS_PER_SECOND,
                reaped_cpu=(int(f[13]) + int(f[14])) / TICKS_PER_SECOND,
                threads=int(f[17]),
                start=int(f[19]),
                resident=int(f[21]) * PAGE_BYTES,
                group=int(f[2]),
                session=int(f[3]),
                terminal=f[4] != b"0",
            )
        except (OSError, ValueError, IndexError):
            return None

    def process_id(self, pid: int) -> str | None:
        """Return the `process` label of a pid, None if the file system does not show it."""
        if pid <= 0:
            return None
        start = self.start_time(pid)
        return None if start is None else process_hash(self.boot_id, str(pid), str(start))

    def status(self, pid: int) -> Status | None:
        """Return user, parent and pid in the container; None without such a process."""
        try:
            # Name comes first and the kernel escapes a newline in it, so no process can forge another line.
            lines = dict(line.partition(b":")[::2] for line in self.read(pid, "status").split(b"\n"))
            pids = lines.get(b"NSpid", b"").split()
            return Status(
                uid=int(lines[b"Uid"].split()[0]),
                parent=int(lines[b"PPid"]),
                container_pid=int(pids[-1]) if len(pids) > 1 else None,
            )
        except (OSError, ValueError, KeyError, IndexError):
            return None

    def shows_machine(self) -> bool:
        """Return whether the file system shows the pids of the whole machine; true if that cannot be read."""
        try:
            return str((self.root / "self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
        except OSError:
            return True

    def host(self) -> str:
        """Return a name of the machine that no other machine has: its host name and six digits of its boot id."""
        return f"{self._host_name()[:_MAX_HOST]}-{hashlib.sha256(self.boot_id.encode()).hexdigest()[:6]}"

    def uses_host_network(self, pid: int) -> bool:
        """Return whether a process has the network of the machine; true if that cannot be read."""
        try:
            return (self.root / f"{pid}/ns/net").readlink() == (self.root / "1/ns/net").readlink()
        except OSError:
            return True

    def uptime(self) -> float | None:
        """Return the seconds since boot, on the clock of the start times."""
        if self.root == Path("/proc"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            return float((self.root / "uptime").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def boot_time(self) -> float | None:
        """Return the Unix time of the boot, see proc_stat(5)."""
        try:
            lines = (self.root / "stat").read_text().splitlines()
            return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
        except (OSError, ValueError, IndexError):
            return None

    def _host_name(self) -> str:
        try:
            if str((self.root / "self/ns/uts").readlink()) != _INITIAL_NAME_NAMESPACE:
                # The kernel returns the name of this container.
                return clean((self.root / "1/root/etc/hostname").read_text().strip()) or "host"
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                return "host"
        try:
            return clean((self.root / "sys/kernel/hostname").read_text().strip()) or "host"
        except OSError:
            return "host"

    def _stat_fields(self, pid: int, file: str) -> list[bytes]:
        """Return the fields of proc_pid_stat(5) up to `rss`, beginning with `state`. Raises OSError, ValueError."""
        stat = self.read_once(pid, file)
        # The command can contain spaces and parentheses; the fields after its closing parenthesis cannot.
        return stat[stat.rindex(b")") + 2 :].split(None, 22)

    def read_once(self, pid: int, name: str) -> bytes:
        """Return the result of one read call: all of a short file that the kernel writes at once, such as stat."""
        return self._within_time(pid, name, partial(self._read, pid, name, 4096, once=True))

    def read(self, pid: int, name: str, limit: int = _MAX_BYTES) -> bytes:
        """Return up to `limit` bytes of a file of a process. Raises OSError, TimeoutError if it hangs."""
        return self._within_time(pid, name, partial(self._read, pid, name, limit))

    def content(self, pid: int, name: str, limit: int = _MAX_BYTES) -> bytes:
        """Return up to `limit` bytes of a file of a process, none if it cannot be read."""
        try:
            return self.read(pid, name, limit)
        except OSError:
            return b""

    def argv(self, pid: int) -> list[bytes]:
        """Return the words of the command line, none if it cannot be read."""
        content = self.content(pid, "cmdline", _MAX_CMDLINE_BYTES)
        return content.split(b"\0") if content else []

    def comm(self, pid: int) -> bytes:
        """Return the name that the kernel keeps, at most 15 characters; empty if it cannot be read."""
        return self.content(pid, "comm").removesuffix(b"\n")

    def cpu_seconds(self) -> float:
        """Return the CPU time of the calling thread and of what it has read in other threads."""
        return time.thread_time() + self._in_time.cpu_seconds()

    def _within_time(self, pid: int, name: str, work: Callable[[], bytes]) -> bytes:
        return self._in_time.read(work, partial(self._owner, pid)) if name in _MAY_HANG else work()

    def _owner(self, pid: int) -> ProcessOwner:
        status = self.status(pid)
        try:
            text = self._read(pid, "cgroup", 4096).decode(errors="replace")
        except OSError:
            text = ""
        person = cgroup.parse(text).owner  # who may make more cgroups below the own slice
        return ProcessOwner(status.uid if status else -1, text if person is None else str(person))

    def _read(self, pid: int, name: str, limit: int, *, once: bool = False) -> bytes:
        # Plain system calls: a Path and a buffered file take three times as long, and this runs for every process.
        descriptor = os.open(f"{self.root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(descriptor, limit)
            while content and not once and len(content) < limit and (more := os.read(descriptor, limit - len(content))):
                content += more
            return content
        finally:
            os.close(descriptor)
