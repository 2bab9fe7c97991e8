"""Other evidence that is possible where some was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.savings import others_busy

# Shares of a process, and of a GPU together with those that are wrong by the same factor.
OF_PROCESS = ("data_wait", "data_wait_exposed", "local_work", "cpu_throttled", "memory_pressure", "asleep")
OF_DEVICE = (("busy", "own_busy"), ("own_busy",), ("sm_active",), ("clock",), ("transfer",))
TOLERANCE = 0.11  # of a measured share
_PAGEABLE = 0.65  # of copies of memory that is not pinned, at 6 to 16 GB/s instead of 10 (shares.py)
_MIXED = 0.05  # share of pauses in the evidence from which on their load matters
_FULL = 0.85  # of the multiprocessors, by kernels that are large enough
_OWN = (0.5, 0.1)  # of the load of a GPU that others use, if it is not known by process
_LEAST_CALL = 0.45  # of the time that a call of the allocator to the driver is assumed to take (savings.py)

_E = TypeVar("_E", Evidence, DeviceEvidence)


def near(found: _E, *names: str, tolerance: float = TOLERANCE) -> Iterator[_E]:
    """Yield the evidence with lower and with higher values of some shares, nothing if none is known."""
    values = {name: value for name in names if (value := getattr(found, name))}
    for factor in (1.0 / (1.0 + tolerance), 1.0 + tolerance) if values else ():
        changed: Any = {name: min(1.0, value * factor) for name, value in values.items()}
        yield found._replace(**changed)


def near_device(e: Evidence, device: DeviceEvidence, *names: str) -> Iterator[DeviceEvidence]:
    """Yield the evidence about a GPU likewise."""
    yield from near(device, *names, tolerance=_PAGEABLE if names == ("transfer",) and e.pinned is False else TOLERANCE)


def possible(e: Evidence) -> Iterator[Evidence]:
    """Yield the evidence with each share a little lower and higher, and with what is not known at its bounds; the same
    in all intervals.
    """
    if not e.intervals:
        yield from _others(e).values()
        return
    others = [_others(part) for part in e.intervals]
    for kind in dict.fromkeys(kind for of_part in others for kind in of_part):
        yield e._replace(
            intervals=tuple(of_part.get(kind, part) for of_part, part in zip(others, e.intervals, strict=True))
        )


def _others(e: Evidence) -> dict[object, Evidence]:
    """Return other evidence by what differs."""
    found: dict[object, Evidence] = {}
    for name in OF_PROCESS:
        found |= {(name, i): other for i, other in enumerate(near(e, name))}
    for names in OF_DEVICE:
        pairs = zip(*(near_device(e, device, *names) for device in e.devices), strict=False)
        found |= {(names, i): e._replace(devices=devices) for i, devices in enumerate(pairs)}
    busy = min((device.busy or 0.0 for device in e.devices), default=0.0)
    if e.data_wait and e.data_wait_exposed is None:
        found["exposed"] = e._replace(data_wait_exposed=max(0.0, e.data_wait - busy))  # the GPU works on in the waits
    if (e.world_size or 1) > 1 and e.local_work is None:
        # A collective that waits keeps the GPU busy, and hardly any of its multiprocessors.
        spins = max((d.busy or 0.0) - (d.sm_active or 0.0) / _FULL for d in e.devices)
        found["peers"] = e._replace(local_work=1.0 - max(0.0, spins))
    for part in _OWN if any(device.shared and device.own_busy is None for device in e.devices) else ():
        own = tuple(d._replace(own_busy=part * (d.busy or 0.0)) for d in e.devices)
        found["own", part] = e._replace(devices=own)
    if e.device_allocs and e.device_frees:
        allocs, frees = (_LEAST_CALL * calls for calls in (e.device_allocs, e.device_frees))
        found["calls"] = e._replace(device_allocs=allocs, device_frees=frees)
    if any(device.shared for device in e.devices):  # its counters are those of all processes
        filled = tuple(_less(device, sm_active=_FULL * others_busy(device)) for device in e.devices)
        found["filled"] = e._replace(devices=filled)
    if e.mixed >= _MIXED:  # the GPU was busy in all of the pauses
        paused = e.mixed / (1.0 - e.mixed)
        parts = {"busy": paused, "own_busy": paused, "sm_active": _FULL * paused}
        found["pauses"] = e._replace(devices=tuple(_less(device, **parts) for device in e.devices))
    return found


def _less(device: DeviceEvidence, **parts: float) -> DeviceEvidence:
    """Return the evidence about a GPU with smaller shares, of those that are known."""
    known = {name: getattr(device, name) for name in parts}
    less: Any = {name: max(0.0, value - parts[name]) for name, value in known.items() if value is not None}
    return device._replace(**less)
