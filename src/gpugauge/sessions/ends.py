"""The reason for the end of a training process: from its last message and from the exit status in the kernel."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from gpugauge.wire import messages as wire
from gpugauge.workload import cgroup
from gpugauge.workload.processfiles import numbers
from gpugauge.workload.procfs import Procfs

PROC, MOUNT = Procfs(), Path("/sys/fs/cgroup")

RUNNING = -1  # in the place of an exit status: the process runs on, for example with another program (os.execv)
STATUS_TIMEOUT_SECONDS = 3.0  # after this time without an exit status the last message alone gives the reason

_PIDFD_GET_INFO = 0xC040FF0B  # ioctl of 64 bytes, Linux 6.13
_PIDFD_INFO_EXIT = 1 << 3  # Linux 6.15: the exit status of a process that its parent has waited for
_EXIT_STATUS_OFFSET = 60
_PF_EXITING = 0x4
_CTRL_C_EXIT_CODE = 128 + signal.SIGINT
_KILL_SECONDS = 10.0  # between two readings of the counts: a kill explains an end for up to twice as long


def reason(bye: str | None, status: int | None, *, for_memory: bool = False) -> str:
    """Return one of SESSION_END_REASONS. `bye` is the reason in the last message, None without one; `status` is that
    of os.waitpid, RUNNING, or None if it is not known; `for_memory` is whether the kernel has killed it for memory.
    """
    if for_memory and status in {None, signal.SIGKILL}:
        return "oom_killed"
    if status is None or status == RUNNING:
        if bye is None:
            return "killed" if status is None else "other"
        return bye if bye in wire.END_REASONS else "other"
    found = _by_status(status)
    # The process knows better why it failed, and the kernel whether it did.
    return found if found == "finished" or bye == "finished" or bye not in wire.END_REASONS else bye


def exit_code(status: int | None) -> str:
    """Return the exit code in an exit status as text, "" if a signal ended the process or the status is not known."""
    return str(os.WEXITSTATUS(status)) if status is not None and os.WIFEXITED(status) else ""


def signal_number(status: int | None) -> str:
    """Return the number of the signal that ended the process as text, "" without one."""
    return str(os.WTERMSIG(status)) if status is not None and os.WIFSIGNALED(status) else ""


def _by_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "interrupted" if os.WTERMSIG(status) == signal.SIGINT else "killed"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "finished"
    return "interrupted" if code == _CTRL_C_EXIT_CODE else "error"


class Ending:
    """A process that has closed its connection; `bye` is the reason in its last message. /proc has the status until its
    parent has waited for it, the kernel afterwards (`pidfd`, which this object closes).
    """

    def __init__(
        self, session: str, bye: str | None, pidfd: int | None, pid: int, accepted: float, *, for_memory: bool = False
    ) -> None:
        self.session, self._bye, self._for_memory = session, bye, for_memory
        self._deadline = time.monotonic() + STATUS_TIMEOUT_SECONDS
        self._status = status_in_proc(pid, accepted)
        self._pidfd = pidfd
        if self._status is not None:
            self.close()

    def reason(self) -> str:
        """Return the reason for the end, empty while the status may become known."""
        if self._pidfd is not None:
            try:
                self._status = _status_of_reaped(self._pidfd)
            except OSError:  # an older kernel, or a process of another pid namespace
                self.close()
            if self._status is not None or time.monotonic() >= self._deadline:
                self.close()
        return reason(self._bye, self._status, for_memory=self._for_memory) if self._pidfd is None else ""

    @property
    def status(self) -> int | None:
        """The exit status, None if it is not known or the process runs on."""
        return None if self._status == RUNNING else self._status

    def close(self) -> None:
        """Close the descriptor of the process. Idempotent."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class MemoryKills:
    """Counts of the processes of a cgroup that the kernel has killed for memory. Each of them explains one end."""

    def __init__(self) -> None:
        self._read_at = 0.0
        self._counts: dict[Path | None, tuple[int, int]] = {}  # by folder: in the reading before the last, and in that

    def watch(self, pid: int) -> Path | None:
        """Return the folder with the count of a process's cgroup, None without one. It is read from now on."""
        try:
            found = cgroup.directory(PROC.read(pid, "cgroup").decode(errors="replace"), MOUNT, "memory")
        except OSError:
            return None
        folder = next((each for each in (found, *found.parents) if _killed(each) >= 0), None) if found else None
        if folder:
            self._counts.setdefault(folder, (_killed(folder), _killed(folder)))
        return folder

    def read(self, folders: Iterable[Path | None], now: float) -> None:
        """Read the counts of these cgroups again if it is time, and forget others."""
        if now - self._read_at >= _KILL_SECONDS:
            self._read_at = now
            known = {folder: self._counts[folder][1] for folder in folders if folder in self._counts}
            self._counts = {folder: (last, max(last, _killed(folder))) for folder, last in known.items()}

    def claim(self, folder: Path | None) -> bool:
        """Return whether the kernel has lately killed a process of the cgroup that explains no other end."""
        before, last = self._counts.get(folder, (0, 0))
        claimed = folder in self._counts and _killed(folder) > before
        if claimed:
            self._counts[folder] = before + 1, max(last, before + 1)
        return claimed


def _killed(folder: Path | None) -> int:
    found = numbers(folder, "memory.events") or numbers(folder, "memory.oom_control")  # cgroup v2, v1
    return found.get("oom_kill", -1)


def status_in_proc(pid: int, accepted: float) -> int | None:
    """Return the status of a process that ends, RUNNING, or None; one that started after `accepted` is another."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes() if pid else b""
        values = stat.rpartition(b")")[2].split()  # the first is field 3 of proc(5)
        flags, started, status = (int(values[field - 3]) for field in (9, 22, 52))
        if started / os.sysconf("SC_CLK_TCK") > accepted:
            return None
        if not flags & _PF_EXITING:
            return RUNNING
        if status == 0:
            # Needs the permission without which the kernel shows 0 for every status.
            Path(f"/proc/{pid}/ns/user").readlink()
    except (OSError, IndexError):
        return None
    return status


def _status_of_reaped(pidfd: int) -> int | None:
    """Return the exit status, None before the parent has waited for the process. Raises OSError."""
    info = bytearray(64)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    if not struct.unpack_from("Q", info)[0] & _PIDFD_INFO_EXIT:
        return None
    (status,) = struct.unpack_from("i", info, _EXIT_STATUS_OFFSET)
    return int(status)
