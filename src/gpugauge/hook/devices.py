"""The devices visible to this process, with figures of its caching allocator. Read only once the program uses CUDA."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

import torch

from gpugauge.hook.wrappers import attempt
from gpugauge.wire import messages as wire

_UNKNOWN: dict[str, Any] = {}


def devices(at_steps: Mapping[int, int]) -> tuple[wire.Device, ...]:
    """Return the visible devices, those in use with figures; empty before the program has initialised CUDA. `at_steps`
    are the bytes allocated after a step, by index. Reading takes the allocator's lock, which can wait for the GIL while
    memory history is recorded (pytorch issue 97833): the figures are not read then.
    """
    if not torch.cuda.is_initialized():
        return ()
    recording = _is_recording()
    count = min(attempt(0, torch.cuda.device_count), wire.MAX_DEVICES)
    return tuple(
        wire.Device(
            index,
            **attempt(_UNKNOWN, _identity, index),
            **(_UNKNOWN if recording else attempt(_UNKNOWN, _figures, index)),
            step_allocated=at_steps.get(index),
        )
        for index in range(count)
    )


def allocated(index: int) -> int | None:
    """Return the bytes of tensors on a device; None where they cannot be read."""
    if not torch.cuda.is_initialized() or _is_recording():
        return None
    found = attempt(_UNKNOWN, torch.cuda.memory_stats_as_nested_dict, index)
    return attempt(None, lambda: int(found["allocated_bytes"]["all"]["current"]))


def _is_recording() -> bool:
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", bool)  # noqa: SLF001  (torch has no public way)
    return bool(attempt(False, enabled))  # `cudaMallocAsync` raises: it has no history


def _figures(index: int) -> dict[str, Any]:
    statistics = torch.cuda.memory_stats_as_nested_dict(index)
    if not statistics.get("reserved_bytes", {}).get("all", {}).get("peak"):
        return {}
    found = {"allocated_peak": statistics["allocated_bytes"]["all"]["peak"], "limit": _limit(index)}
    for name in ("allocated", "reserved", "active", "inactive_split"):
        found[name] = statistics.get(f"{name}_bytes", {}).get("all", {}).get("current")
    counts = {"retries": "num_alloc_retries", "ooms": "num_ooms"}
    counts |= {"device_allocs": "num_device_alloc", "device_frees": "num_device_free"}  # since torch 2.2
    if attempt("", getattr(torch.cuda, "get_allocator_backend", lambda: "native")) != "native":
        counts = {}  # the others count no errors and no retries (0 in these statistics, on an H100, too)
        del found["inactive_split"]
    return found | {name: statistics.get(key) for name, key in counts.items()}


def _limit(index: int) -> int | None:
    """Return the bytes that the allocator may take of the device's memory. None if torch refuses it."""
    total = attempt(None, lambda: int(torch.cuda.get_device_properties(index).total_memory))
    share = getattr(torch._C, "_cuda_getMemoryFraction", None)  # noqa: SLF001 - the public way may initialise CUDA
    found = 1.0 if share is None else attempt(None, share, index)
    return None if total is None or found is None else int(total * min(1.0, found))


@functools.cache
def _identity(index: int) -> dict[str, Any]:
    """Return the device's name, compute capability, and uuid as the driver spells it (None before torch 2.4)."""
    properties = torch.cuda.get_device_properties(index)
    name, uuid, major, minor = (getattr(properties, field, None) for field in ("name", "uuid", "major", "minor"))
    if getattr(torch.version, "hip", None):
        uuid = attempt(None, _address, index)  # the uuid of a build for ROCm is another one than that of the driver
    spelt = None if uuid is None else wire.clean(str(uuid))
    return {
        "uuid": spelt if spelt is None or spelt.startswith(("GPU-", "MIG-", "PCI-")) else f"GPU-{spelt}",
        "name": wire.clean(name) if name else None,
        "capability": f"{major}.{minor}" if major is not None and minor is not None else None,
    }


def _address(index: int) -> str | None:
    """Return the PCI address of a device of ROCm, as PCI-0000:c1:00.0, by the library that torch has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libamdhip64.so" in line}
    text = ctypes.create_string_buffer(64)
    for path in paths:
        if ctypes.CDLL(path).hipDeviceGetPCIBusId(text, len(text), index) == 0:
            return "PCI-" + text.value.decode().lower()
    return None


Point = Union[int, str]

_EVERY_NS = 1_000_000_000
_LOST_NS = 60 * _EVERY_NS  # after which another point is taken: the optimizer of this one steps no more


class StepMemory:
    """Bytes by index of the device after a step, once a second; of several optimizers always after the same one's."""

    def __init__(self, read: Callable[[int], int | None]) -> None:
        """`read` returns the bytes of tensors on a device, None if they are not known."""
        self._read = read
        self.allocated: dict[int, int] = {}
        self.due = self._taken = 0  # perf_counter_ns
        self._point: Point | None = None

    def sample(self, point: Point, now: int, devices: Iterable[int]) -> None:
        """Read the `devices` that the process uses, if this is the point of the samples before."""
        if point != self._point and self._point is not None and now - self._taken < _LOST_NS:
            return
        self._point, self._taken, self.due = point, now, now + _EVERY_NS
        found = ((index, self._read(index)) for index in devices)
        self.allocated = {index: size for index, size in found if size is not None}
