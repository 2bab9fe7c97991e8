"""What the removal of each cause would save of the time in which a process holds one GPU, as a share of that time.

The step is seen as a pipeline: the host launches kernels ahead of the GPU, unless it copies pageable memory or frees
memory of the GPU; workers load batches beside both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpugauge.verdict.evidence import LIMITING_WAIT, DeviceEvidence, Evidence

# Upper bound of the mean of a cudaMalloc or cudaFree. Published measurements: 0.2 ms for 64 KB, 0.9 ms for 16 MB and
# 1.2 ms for 64 MB to allocate, 850 pairs of calls a second for 1 MB (github.com/rtj1/cuda-mempool). Blocks of torch's
# allocator have 2 MB, 20 MB or more.
DEVICE_CALL_SECONDS = 0.001
# Upper bound of a retry whose calls are not counted: it frees and allocates 100 blocks. Before the first free the
# device is synchronised (github.com/pytorch/pytorch/pull/19222), so that it is idle until the end of the retry.
RETRY_SECONDS = 200 * DEVICE_CALL_SECONDS

# Ratios from 0 to 1.
LEAST_SHARE = 0.05  # a smaller share is noise
_NORMAL_SM_ACTIVE = 0.85  # of the multiprocessors, by kernels that are large enough
_FILLED_SM_ACTIVE = 0.6  # below it, kernels are too small for the GPU
COPYING = 0.1  # PCIe traffic from which on the copies of batches matter
_COPIED = 0.05  # … if it is known whether they are pinned
ALWAYS_COPYING = 0.7  # PCIe traffic of a link that is always in use
_ROOT_CAUSE = 0.9  # share of the largest saving from which on withheld CPU or memory explains the gaps
_WITHHELD = 0.2  # share of the time from which on CPU or memory counts as withheld
_FULL_CLOCK = 0.85  # of the maximum
# Of the time of kernels in 32 bits: a lower precision is expected to make them 2.5 times as fast, and at least 1.5
# times. A network of large products became 5.2 times as fast in TF32 on an H200 (docs/proof/verdict.md).
PRECISION_SAVES, PRECISION_SAVES_LEAST = 0.6, 0.33
_LEAST_LEFT = 0.01  # that faster steps save before they wait for the loader
_LEAST_AHEAD = 0.2  # share of the host's work by which the kernels outlast it, if it limits the step nevertheless
_SERIAL = 0.33  # share of gaps from which on the training does not wait for the GPU

# Causes of a slow loader or host, and the share of the time that they take.
ROOTS: Mapping[str, Callable[[Evidence], float | None]] = {
    "cpu_limited": lambda e: e.cpu_throttled,
    "memory_swap_io": lambda e: e.memory_pressure,
}
SLOWED = frozenset({"data_loading", "host_bound", "offloaded", "unknown"})


class Loss(NamedTuple):
    """`shares` divide the lost time by cause. `savings` are the shares that the removal of one cause alone saves, and
    `turns` those that it saves if the causes take turns: shares are means, which hide it.
    """

    shares: Mapping[str, float] = {}
    savings: Mapping[str, float] = {}
    turns: Mapping[str, float] = {}


def of_device(e: Evidence, device: DeviceEvidence, *, roots: bool = True) -> Loss:
    """Return the loss of a training on one of its GPUs. With `roots`, withheld CPU or memory that explains the gaps is
    their only cause.
    """
    if device.busy is None:
        return Loss()
    own = own_busy(device)
    waiting = waiting_for_peers(e, device, own)
    shared = others_busy(device)
    # While the step is at its kernels, the other processes take their share of the GPU.
    computing = min(1.0, (own - waiting) / (1.0 - shared))
    working = min(1.0, (device.busy - shared - waiting) / (1.0 - shared))  # with busy time of no known process
    gap = max(0.0, 1.0 - working - waiting)
    in_gaps = _gaps(e, device, gap, computing)
    in_gaps = with_root_cause(in_gaps) if roots else in_gaps
    slower = slow_kernels(e, device, own - waiting, shared)
    # Gaps show that the training does not wait for the GPU, except those that follow the kernels in each step.
    after = e.offloads or (in_gaps.get("transfer") and not e.pinned)
    serial = gap if after else in_gaps.get("memory_pressure", 0.0)
    idle = max(0.0, 1.0 - device.busy - serial)
    weight = 0.0 if loader_limits(e, gap) else max(0.0, 1.0 - idle / _SERIAL)
    # The thread loads even with faster kernels, and workers are no faster than they are.
    most = 1.0 - (e.data_wait or 0.0) if e.loader_workers == 0 else until_loader(e)
    on_device = {name: min(most, computing * part) * weight for name, part in slower.items()}
    lost = computing * weight * (1.0 - math.prod(1.0 - part for part in slower.values()))
    shares, waits = _divided(gap, in_gaps) | _divided(lost, on_device), {why_it_waits(e): waiting}
    seen = {"data_loading": min(gap, _waited(e) or 0.0), "transfer": min(gap, device.transfer or 0.0)}
    seen |= {"waiting_elsewhere": in_gaps.get("waiting_elsewhere", 0.0)} | _withheld_at_times(e, gap)
    seen["memory_pressure"] = min(gap, allocator_share(e))
    turns = seen | {_own(e): gap - max(seen.values())} | {name: computing * part for name, part in slower.items()}
    return Loss(shares | waits, in_gaps | on_device | waits, turns | _at_times(device, computing, shared) | waits)


def why_it_waits(e: Evidence) -> str:
    """Return the cause of the waits in collectives."""
    return "slow_network" if e.slow_network else "waiting_for_peers"


def own_busy(device: DeviceEvidence) -> float:
    """Return the share in which kernels of the process run, that of all processes if it is not known apart."""
    busy = device.busy or 0.0
    return busy if device.own_busy is None else min(device.own_busy, busy)


def others_busy(device: DeviceEvidence) -> float:
    """Return the share in which kernels of other known processes run, and none of this one."""
    others = (device.busy or 0.0) - own_busy(device) - device.unowned_busy
    return min(0.99, max(0.0, others)) if device.shared else 0.0


def allocator_share(e: Evidence) -> float:
    """Return the largest share of the time that the allocator's retries can have cost."""
    calls = None if e.device_allocs is None or e.device_frees is None else e.device_allocs + e.device_frees
    # Without a free, the allocator only grew.
    pressed = max(e.retries, e.ooms) or (e.device_frees or 0.0)
    if not pressed or not e.window:
        return 0.0
    seconds = pressed * RETRY_SECONDS if calls is None else calls * DEVICE_CALL_SECONDS
    return seconds / e.window


def _divided(total: float, savings: Mapping[str, float]) -> dict[str, float]:
    whole = sum(savings.values())
    return {name: total * saved / whole for name, saved in savings.items()} if whole else {}


def loader_limits(e: Evidence, gap: float) -> bool:
    """Return whether workers deliver batches too slowly. Nothing else in the pipeline then costs time."""
    return bool(e.loader_workers) and min(_waited(e) or 0.0, gap) >= LIMITING_WAIT


def _waited(e: Evidence) -> float | None:
    return e.data_wait if e.data_wait_exposed is None else e.data_wait_exposed


def _gaps(e: Evidence, device: DeviceEvidence, gap: float, computing: float) -> dict[str, float]:
    """Return the savings of the causes of time in which no kernel ran, `gap` as a share of the time."""
    waited = _waited(e)
    wait = min(waited or 0.0, gap)
    if loader_limits(e, gap):
        return {"data_loading": wait} | _withheld(e, gap)
    # What is measured goes before a bound.
    measured = max(wait, *_withheld(e, gap).values(), 0.0)
    pressure = min(gap - measured, allocator_share(e))
    left = gap - pressure
    copied = min(left, device.transfer) if device.transfer and device.transfer >= _COPIED else 0.0
    host = min(left, 1.0 - (e.data_wait or 0.0))
    if e.pinned:
        # Copies from pinned memory overlap with kernels, and cost time only if the link is always in use. Then the host
        # limits the step at most while it is not.
        always = (device.transfer or 0.0) >= ALWAYS_COPYING
        transfer, host = (left, min(host, 1.0 - (device.transfer or 0.0))) if always else (0.0, host)
    else:
        # Copies from pageable memory do not overlap: without them, the host works while kernels run.
        transfer = copied + min(left - copied, computing) if copied else 0.0
        host = left - copied - wait if copied else host
    if e.data_wait_exposed is not None and e.loader_workers == 0:
        # A GPU that is idle in the waits alone, and in all of them, waits for batches: the host waits for its kernels.
        host = min(host, left - wait + ((e.data_wait or 0.0) - wait) / _LEAST_AHEAD)
    if e.offloads:  # the optimizer follows the kernels, and the next step the optimizer
        host = min(host, left - wait - (0.0 if e.pinned else copied))
        transfer = transfer if e.pinned else copied
    # With steps from the hook, the waits for the loader are known and the rest of the gaps is work of the host. Copies
    # from pinned memory overlap with kernels; other copies may fill the gaps unless the PCIe traffic is known.
    copies_known = device.transfer is not None or e.pinned is True
    known = e.inside and e.steps != 0 and waited is not None and copies_known
    most = left if e.pinned else left - copied
    asleep = elsewhere(e, max(0.0, most - wait))
    found = {"transfer": transfer, "memory_pressure": pressure, "waiting_elsewhere": asleep}
    found |= {_own(e) if known else "unknown": max(0.0, host - asleep)}
    found = {name: min(until_loader(e), saved) for name, saved in found.items()}
    return {"data_loading": wait} | found | _withheld(e, most)


def until_loader(e: Evidence) -> float:
    """Return what faster steps save at most: then they wait for the workers of the loader, as busy as those are."""
    return max(_LEAST_LEFT, 1.0 - (e.loading or 0.0)) if e.loader_workers else 1.0


def _own(e: Evidence) -> str:
    return "offloaded" if e.offloads else "host_bound"


def elsewhere(e: Evidence, most: float) -> float:
    """Return what is saved if the training thread never sleeps outside of its loader, but for memory or storage."""
    slept = (e.asleep or 0.0) - (e.memory_pressure or 0.0)
    return min(most, slept) if slept >= LEAST_SHARE else 0.0


def _withheld(e: Evidence, most: float) -> dict[str, float]:
    """Return the savings of resources that the cgroup or the machine withholds, at most the time of loader and host."""
    shares = {name: share(e) or 0.0 for name, share in ROOTS.items()}
    return {name: min(most, share) for name, share in shares.items() if share >= _WITHHELD}


def _withheld_at_times(e: Evidence, most: float) -> dict[str, float]:
    """Return them if they take turns with other causes: what the training thread waits, for batches or by itself. What
    workers lack that are fast enough costs nothing.
    """
    waits = {"cpu_limited": e.runnable, "memory_swap_io": e.asleep}
    known = {name: wait for name, wait in waits.items() if wait is not None and e.data_wait is not None}
    found = _withheld(e, most)
    return found | {name: min(found[name], (e.data_wait or 0.0) + known[name]) for name in found.keys() & known}


def waiting_for_peers(e: Evidence, device: DeviceEvidence, busy: float) -> float:
    """Return the share of time in which a collective waits for slower ranks: its kernel draws little power."""
    power = None if device.power_limit_lowered else device.power  # of a low limit, it is a large share
    low_power = (power is None or power < 0.85) and (device.tensor_active is None or device.tensor_active < 0.6)
    if (e.world_size or 1) < 2 or e.local_work is None or not low_power:
        return 0.0
    return min(busy, max(0.0, 1.0 - e.local_work))


def slow_kernels(e: Evidence, device: DeviceEvidence, computing: float, shared: float) -> dict[str, float]:
    """Return the shares of the kernels' time that the removal of each cause would save."""
    longer: dict[str, float] = {"contention": shared}
    if device.slowed and device.clock is not None and device.clock < _FULL_CLOCK:
        longer["throttled"] = device.slowed * (1.0 - device.clock)
    # The counters of multiprocessors cover all processes on the GPU: this one fills no more of it.
    if device.sm_active is not None and computing > 0.2:
        filled = min(1.0, device.sm_active / computing)
        if filled < _FILLED_SM_ACTIVE:
            longer["underfilled"] = 1.0 - filled / _NORMAL_SM_ACTIVE
        if e.fp32_only and device.tensor_active is not None and device.tensor_active < 0.01:
            longer["precision_unused"] = min(PRECISION_SAVES, 1.0 - 1.0 / (device.tensor_speedup or math.inf))
    return longer


def _at_times(device: DeviceEvidence, computing: float, shared: float) -> dict[str, float]:
    """Return the most that slow kernels can cost if they are slow for a part of the time, and nothing else is then."""
    found = {"contention": shared}
    if device.slowed and device.clock is not None:
        found["throttled"] = min(device.slowed, 1.0 - device.clock)
    if device.sm_active is not None and not (device.shared and device.own_busy is None):
        found["underfilled"] = max(0.0, computing - device.sm_active / _NORMAL_SM_ACTIVE)
    return found


def with_root_cause(savings: dict[str, float]) -> dict[str, float]:
    """Return the savings without those of a slow loader or host, if withheld CPU and memory together make them slow."""
    withheld = 1.0 - math.prod(1.0 - savings.get(name, 0.0) for name in ROOTS)
    if not withheld or withheld < _ROOT_CAUSE * max(savings.values()):
        return savings
    return {name: saved for name, saved in savings.items() if name not in SLOWED}
