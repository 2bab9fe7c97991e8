"""Readers of files of one process in /proc and in the cgroup file system. Values that cannot be read are None."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpugauge.workload.identity import Workload
from gpugauge.workload.procfs import PAGE_BYTES, Procfs, Stat

_MAX_MAPS_BYTES = 16 << 20
_MAX_DESCRIPTORS = 65_536  # of one process

_TORCH = re.compile(rb"/libtorch(?:_cpu|_python|_cuda|_hip)?\.so")
_CUDA = re.compile(rb"/lib(?:torch|c10)_cuda\.so")
_ROCM = re.compile(rb"/lib(?:torch|c10)_hip\.so")
_HOOK = "gpugauge/hook/bootstrap"  # the end of its entry in PYTHONPATH
_USER_BASE = "/opt/gpugauge-hook/"  # the begin of PYTHONUSERBASE in a container with gpugauge's device
_CPU_LIST = re.compile(r"[0-9,-]{1,128}")
_NO_LIMIT = 1 << 62  # a larger one of cgroup v1 is none
_OFF = ("0", "false", "no", "off")
_DEVICE = re.compile(r"/dev/(?:nvidia\d+|nvidia-caps/nvidia-cap\d+)")


class Cgroup(NamedTuple):
    """Figures of a process's cgroup: CPUs of its quota, seconds throttled, seconds stalled by resource (PSI, some),
    bytes that cannot be reclaimed without swap, the limit of its memory, and the bytes up to it; `at` is the monotonic
    time at which they were read, `used` the CPU time in seconds.
    """

    cpus: float | None
    throttled: float | None
    pressure: dict[str, float]
    memory: int | None = None
    memory_limit: int | None = None
    memory_left: int | None = None
    at: float | None = None
    used: float | None = None


def torch_build(procfs: Procfs, pid: int) -> str:
    """Return the build of torch that a process has mapped: cpu, cuda or rocm; empty without torch. Raises OSError."""
    maps = procfs.read(pid, "maps", _MAX_MAPS_BYTES)
    if not _TORCH.search(maps):
        return ""
    return "cuda" if _CUDA.search(maps) else "rocm" if _ROCM.search(maps) else "cpu"


def io_bytes(procfs: Procfs, pid: int) -> dict[str, int] | None:
    """Return the bytes that storage read and wrote for the process, by direction."""
    try:
        found = _numbers(procfs.read_once(pid, "io").decode(errors="replace"))
    except OSError:
        return None
    named = {"read": found.get("read_bytes:"), "write": found.get("write_bytes:")}
    return {name: value for name, value in named.items() if value is not None} or None


class Bounds(NamedTuple):
    """The CPUs on which the main thread can run, by number and as a list such as 0-7,16, and the bytes swapped out."""

    cpus: int | None = None
    cpu_list: str = ""
    swapped: int | None = None


@dataclass(slots=True)
class HostProcess:
    """A process that uses a GPU or has torch mapped. Values that cannot be read are None."""

    process: str
    pid: int
    stat: Stat
    torch: str = ""  # the build: cpu, cuda or rocm
    container_pid: int | None = None
    visible_devices: str | None = None
    hook: bool | None = None  # whether it was started with the hook; None before that was read
    workload: Workload = field(default_factory=Workload)
    main_cpu: float | None = None
    children_cpu: float = 0.0
    uninterruptible: float = 0.0
    io: dict[str, int] | None = None
    bounds: Bounds = field(default_factory=Bounds)
    resident: dict[str, int] = field(default_factory=dict)  # bytes by part
    anonymous: dict[str, int] = field(default_factory=dict)
    device_files: int | None = None
    memory_available: int | None = None
    cgroup: Cgroup = field(default_factory=lambda: Cgroup(None, None, {}))
    folders: tuple[Path | None, Path | None] = (None, None)
    scanned: float | None = None
    read_slowly: float = float("-inf")


def bounds(procfs: Procfs, pid: int) -> Bounds:
    """Return the CPUs and the swapped memory of a process."""
    lines = (line.partition(":") for line in procfs.content(pid, "status").decode(errors="replace").split("\n"))
    found = {name: value.strip() for name, _, value in lines}
    try:
        cpus = int(found.get("Cpus_allowed", "").replace(",", ""), 16).bit_count() or None
    except ValueError:
        cpus = None
    swapped = found.get("VmSwap", "").split()
    size = int(swapped[0]) << 10 if len(swapped) == 2 and swapped[0].isdigit() else None
    listed = found.get("Cpus_allowed_list", "")
    return Bounds(cpus, listed if _CPU_LIST.fullmatch(listed) else "", size)


def anonymous_bytes(procfs: Procfs, pid: int) -> int | None:
    """Return the resident memory that no file backs: a heap that grows, not a dataset that is mapped."""
    try:
        fields = procfs.read_once(pid, "statm").split()
        return max(0, int(fields[1]) - int(fields[2])) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def visible_devices(procfs: Procfs, pid: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES in the initial environment of the process."""
    return _variable(procfs, pid, b"CUDA_VISIBLE_DEVICES=")


def starts_hook(procfs: Procfs, pid: int) -> bool:
    """Return whether the process was started with the hook, as by `gpugauge run`, and with it switched on."""
    switch = (_variable(procfs, pid, b"GPUGAUGE_HOOK=") or "").strip().lower()
    by_device = (_variable(procfs, pid, b"PYTHONUSERBASE=") or "").startswith(_USER_BASE)
    return (by_device or _HOOK in (_variable(procfs, pid, b"PYTHONPATH=") or "")) and switch not in _OFF


def _variable(procfs: Procfs, pid: int, prefix: bytes) -> str | None:
    content = procfs.content(pid, "environ")
    values = [entry for entry in content.split(b"\0") if entry.startswith(prefix)]
    return values[0].partition(b"=")[2].decode(errors="replace") if values else None


def device_files(procfs: Procfs, pid: int) -> int | None:
    """Return the number of device files of NVIDIA GPUs and MIG devices that the process has open, each counted once."""
    found = set()
    try:
        with os.scandir(f"{procfs.root}/{pid}/fd") as entries:
            for entry in islice(entries, _MAX_DESCRIPTORS):
                with suppress(OSError):  # it is closed
                    target = os.readlink(entry.path)  # noqa: PTH115 - creating a Path takes longer than the call
                    if target.startswith("/dev/nvidia") and _DEVICE.fullmatch(target):
                        found.add(target)
    except OSError:
        return None
    return len(found)


def cgroup(cpu: Path | None, memory: Path | None) -> Cgroup:
    """Return the figures in the cgroup folders of a process for CPU and memory, one folder with v2."""
    used = numbers(cpu, "cpu.stat")
    throttled = spent = None
    if "throttled_usec" in used:
        throttled, spent = used["throttled_usec"] / 1e6, used.get("usage_usec", 0) / 1e6
    elif "throttled_time" in used:  # v1
        throttled = used["throttled_time"] / 1e9
    folders = {"cpu": cpu, "io": cpu, "memory": memory}
    stalls = {resource: _stalled(_read(folder, f"{resource}.pressure")) for resource, folder in folders.items()}
    pressure = {resource: s for resource, s in stalls.items() if s is not None}
    return Cgroup(_quota(cpu), throttled, pressure, *_memory(memory), used=spent)


def memory_available(procfs: Procfs) -> int | None:
    """Return the memory of the machine that a new process can use without swapping, in bytes."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (procfs.root / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _memory(folder: Path | None) -> tuple[int | None, int | None, int | None]:
    """Return the memory that cannot be reclaimed without swap, the limit, and the bytes up to it; None without one."""
    found = numbers(folder, "memory.stat")
    anonymous = found.get("total_rss", found.get("anon"))  # v1, v2
    shared = found.get("total_shmem", found.get("shmem", 0))
    most = _count(folder, "memory.max", "memory.limit_in_bytes")
    limit = most if most is not None and most < _NO_LIMIT else None
    charged = _count(folder, "memory.current", "memory.usage_in_bytes")
    files = found.get("total_inactive_file", found.get("inactive_file", 0))
    left = None if limit is None or charged is None else max(0, limit - charged + files)
    return None if anonymous is None else anonymous + shared, limit, left


def _count(folder: Path | None, *names: str) -> int | None:
    """Return the number in the first of these files that has a text, None if it is not a number."""
    text = next((text for name in names if (text := _read(folder, name).strip())), "")
    return int(text) if text.isdigit() else None


def _quota(folder: Path | None) -> float | None:
    words = _read(folder, "cpu.max").split() or [
        _read(folder, "cpu.cfs_quota_us").strip(),
        _read(folder, "cpu.cfs_period_us").strip(),
    ]
    try:
        quota, period = (int(word) for word in words)
    except ValueError:  # "max": no quota
        return None
    return quota / period if quota > 0 and period > 0 else None


def _stalled(text: str) -> float | None:
    """Return the seconds in the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, where they are in µs."""
    match = re.search(r"^some .*total=(\d+)", text, re.MULTILINE)
    return int(match[1]) / 1e6 if match else None


def numbers(folder: Path | None, name: str) -> dict[str, int]:
    """Return the numbers in a file of a cgroup, by their names; none if it cannot be read."""
    return _numbers(_read(folder, name))


def _numbers(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


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
