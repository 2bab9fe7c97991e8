"""A process as /proc shows it, and the identity that outlives its pid."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=8192)
def process_hash(*facts: str) -> str:
    """Return the `process` label: 12 hex digits over boot id, pid and start time (or over a hook's session id)."""
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Status:
    """What proc_pid_status(5) says about a process."""

    uid: int  # the real one: who started it
    parent: int
    container_pid: int | None  # its pid in the innermost pid namespace, None if that is the one we see


class Procfs:
    """Reads a proc file system, the host's mounted elsewhere included; what vanishes between two reads is None."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = Path(root)
        try:
            self.boot_id = (self.root / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            # Some sandboxes hide it. Start times are relative to boot, so only a reboot could confuse two processes.
            self.boot_id = ""

    def start_time(self, pid: int) -> int | None:
        """Return the start time in clock ticks after boot (field 22 of proc_pid_stat(5)), None without such a pid."""
        try:
            stat = self.read_once(pid, "stat")
            # The command may hold spaces and parentheses; the fields after the last one do not.
            return int(stat[stat.rindex(b")") + 2 :].split()[19])
        except (OSError, ValueError, IndexError):
            return None

    def process_id(self, pid: int) -> str | None:
        """Return the `process` label of a pid that /proc shows, otherwise None."""
        if pid <= 0:
            return None
        start = self.start_time(pid)
        return None if start is None else process_hash(self.boot_id, str(pid), str(start))

    def status(self, pid: int) -> Status | None:
        """Return user, parent and pid in its container, None without such a pid."""
        try:
            # Name comes first and the kernel escapes a newline in it, so no process can forge another line.
            lines = dict(line.partition(b":")[::2] for line in self.read(pid, "status").splitlines())
            pids = lines.get(b"NSpid", b"").split()
            return Status(
                uid=int(lines[b"Uid"].split()[0]),
                parent=int(lines[b"PPid"]),
                container_pid=int(pids[-1]) if len(pids) > 1 else None,
            )
        except (OSError, ValueError, KeyError, IndexError):
            return None

    def read_once(self, pid: int, name: str) -> bytes:
        """Return what one call gives: all of a short file that the kernel writes in one go, such as stat."""
        descriptor = os.open(f"{self.root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 4096)
        finally:
            os.close(descriptor)

    def read(self, pid: int, name: str, limit: int = 65536) -> bytes:
        """Return the first bytes of a file of a process. Raises OSError: no such process, no right to read it."""
        # Plain system calls: a Path and a buffered file cost three times as much, and this runs for every process.
        descriptor = os.open(f"{self.root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(descriptor, limit)
            while content and len(content) < limit and (more := os.read(descriptor, limit - len(content))):
                content += more
            return content
        finally:
            os.close(descriptor)
