"""What files of /proc and of the cgroup file system say about one process; None for what they do not."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpugauge.workload.procfs import Procfs

TICKS = os.sysconf("SC_CLK_TCK")
_MAPS_BYTES, _ENVIRON_BYTES = 16 << 20, 262_144
_MOST_FILES = 65_536  # descriptors of one process that are looked at

_TORCH = re.compile(rb"/libtorch(?:_cpu|_python|_cuda|_hip)?\.so")
_CUDA = re.compile(rb"/lib(?:torch|c10)_cuda\.so")
_ROCM = re.compile(rb"/lib(?:torch|c10)_hip\.so")
_DEVICE = re.compile(r"/dev/(?:nvidia\d+|nvidia-caps/nvidia-cap\d+)")


class Stat(NamedTuple):
    """Of proc_pid_stat(5). `start` in clock ticks after boot, the rest in seconds."""

    state: str
    parent: int
    major_faults: int
    cpu: float
    reaped_cpu: float  # of children that ended and were waited for
    threads: int
    start: int


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Of a process's cgroup: CPUs that its quota allows, seconds throttled, seconds stalled by resource (PSI, some)."""

    cpus: float | None
    throttled: float | None
    pressure: dict[str, float]


def stat(procfs: Procfs, pid: int, file: str = "stat") -> Stat | None:
    """Read a process, or with `task/TID/stat` one of its threads."""
    try:
        content = procfs.read_once(pid, file)
        # The command may hold spaces and parentheses; the fields after the last one do not.
        f = content[content.rindex(b")") + 2 :].split()
        return Stat(
            state=f[0].decode(),
            parent=int(f[1]),
            major_faults=int(f[9]),
            cpu=(int(f[11]) + int(f[12])) / TICKS,
            reaped_cpu=(int(f[13]) + int(f[14])) / TICKS,
            threads=int(f[17]),
            start=int(f[19]),
        )
    except (OSError, ValueError, IndexError):
        return None


def torch_build(procfs: Procfs, pid: int) -> str:
    """Tell which build of torch a process has mapped: cpu, cuda or rocm, empty without torch. Raises OSError."""
    maps = procfs.read(pid, "maps", _MAPS_BYTES)
    if not _TORCH.search(maps):
        return ""
    return "cuda" if _CUDA.search(maps) else "rocm" if _ROCM.search(maps) else "cpu"


def io_bytes(procfs: Procfs, pid: int) -> dict[str, int] | None:
    """Return what the process made the storage read and write, by direction."""
    try:
        found = _numbers(procfs.read_once(pid, "io").decode(errors="replace"))
    except OSError:
        return None
    named = {"read": found.get("read_bytes:"), "write": found.get("write_bytes:")}
    return {name: value for name, value in named.items() if value is not None} or None


def affinity(procfs: Procfs, pid: int) -> int | None:
    """Return the number of CPUs that the main thread may run on."""
    for line in _text(procfs, pid, "status").splitlines():
        name, _, mask = line.partition(":")
        if name == "Cpus_allowed":
            try:
                return int(mask.strip().replace(",", ""), 16).bit_count() or None
            except ValueError:
                return None
    return None


def visible_devices(procfs: Procfs, pid: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES as the process was started with it."""
    try:
        content = procfs.read(pid, "environ", _ENVIRON_BYTES)
    except OSError:
        return None
    values = [entry for entry in content.split(b"\0") if entry.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return values[0].partition(b"=")[2].decode(errors="replace") if values else None


def device_files(procfs: Procfs, pid: int) -> int | None:
    """Return how many device files of NVIDIA GPUs and MIG parts the process has open, each counted once."""
    found = set()
    try:
        with os.scandir(f"{procfs.root}/{pid}/fd") as entries:
            for entry in islice(entries, _MOST_FILES):
                target = _target(entry.path)
                if target.startswith("/dev/nvidia") and _DEVICE.fullmatch(target):
                    found.add(target)
    except OSError:
        return None
    return len(found)


def cgroup(cpu: Path | None, memory: Path | None) -> Cgroup:
    """Read the folders that account for a process's CPU time and memory: the same one with v2."""
    used = _numbers(_read(cpu, "cpu.stat"))
    throttled = None
    if "throttled_usec" in used:
        throttled = used["throttled_usec"] / 1e6
    elif "throttled_time" in used:  # v1
        throttled = used["throttled_time"] / 1e9
    folders = {"cpu": cpu, "io": cpu, "memory": memory}
    stalls = {resource: _stalled(_read(folder, f"{resource}.pressure")) for resource, folder in folders.items()}
    return Cgroup(_quota(cpu), throttled, {resource: s for resource, s in stalls.items() if s is not None})


def _quota(folder: Path | None) -> float | None:
    words = _read(folder, "cpu.max").split() or [
        _read(folder, "cpu.cfs_quota_us").strip(),
        _read(folder, "cpu.cfs_period_us").strip(),
    ]
    try:
        quota, period = (int(word) for word in words)
    except ValueError:  # "max": there is none
        return None
    return quota / period if quota > 0 and period > 0 else None


def _stalled(text: str) -> float | None:
    """Return the seconds of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds there."""
    match = re.search(r"^some .*total=(\d+)", text, re.MULTILINE)
    return int(match[1]) / 1e6 if match else None


def _numbers(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - a Path for each of thousands costs more than the call
    except OSError:
        return ""


def _text(procfs: Procfs, pid: int, name: str) -> str:
    try:
        return procfs.read(pid, name).decode(errors="replace")
    except OSError:
        return ""


def _read(folder: Path | None, name: str) -> str:
    if folder is None:
        return ""
    try:
        descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
