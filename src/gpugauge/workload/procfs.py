"""A process as /proc shows it, and the identity that outlives its pid."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=8192)
def process_hash(*facts: str) -> str:
    """Return the `process` label: 12 hex digits over boot id, pid and start time (or over a hook's session id)."""
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


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
            stat = (self.root / str(pid) / "stat").read_bytes()
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
