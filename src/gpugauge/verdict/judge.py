"""State and causes of a process, from its evidence. A cause without evidence is not reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpugauge.verdict.evidence import DeviceEvidence, Evidence

STALLED_SECONDS = 300.0
STALLED_STEPS = 10.0  # a training is not stalled before this many of its own slow steps
STARTUP_STALL_FACTOR = 2.0  # time until the first step, as a multiple of the time until a training is stalled
MIN_EVIDENCE_SECONDS = 15.0  # of the window, before a cause is reported
# Ratios from 0 to 1.
_IDLE_BUSY = 0.01  # a GPU that is less busy is idle
_FILLED_SM_ACTIVE = 0.7  # below it, kernels are too small for the GPU
_MIN_CAUSE_SHARE = 0.05  # a smaller share is noise
_MIN_PRIMARY_SHARE = 0.10  # share from which a cause is reported as the limit
_MIN_LEAD_SHARE = 0.05  # by which it must exceed the cause reported before
_ROOT_CAUSE_SHARE = 0.9  # share of the gaps from which withheld CPU or memory explains all of them

# Causes that need the performance counters of the GPU (GPM).
NEED_COUNTERS = frozenset({"underfilled", "precision_unused", "transfer"})

# States by phase of the hook.
_PHASES = {
    "compiling": "compiling",
    "evaluating": "evaluating",
    "checkpointing": "checkpointing",
    "generating": "generating",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`causes` are the shares of the held GPU time lost to each cause. `limited_by` is the cause to remove first."""

    state: str
    confidence: Literal["inside", "outside"]
    causes: Mapping[str, float] = field(default_factory=dict)
    limited_by: str | None = None
    undecidable: frozenset[str] = frozenset()


def judge(e: Evidence, before: Verdict | None = None, stalled_seconds: float = STALLED_SECONDS) -> Verdict:
    """Return the verdict on one process over one window. `before` is the last verdict, for the hysteresis of
    `limited_by`. A process is stalled after `stalled_seconds` without a step or batch, later if its own steps are slow.
    """
    state = _state(e, max(stalled_seconds, STALLED_STEPS * (e.slow_step or 0.0)))
    causes = {name: round(share, 4) for name, share in _causes(e, state).items() if share >= _MIN_CAUSE_SHARE}
    # Without the hook, and with little evidence, the cause "unknown" is counted but not reported as the limit.
    found = state != "unknown" and (e.window >= MIN_EVIDENCE_SECONDS or "unknown" not in causes)
    limited_by = _primary(causes, before.limited_by if before else None) if found else None
    measured = any(device.sm_active is not None for device in e.devices)
    undecidable = frozenset() if measured or not e.devices else NEED_COUNTERS
    return Verdict(state, "inside" if e.inside else "outside", causes, limited_by, undecidable)


def _state(e: Evidence, stalled_after: float) -> str:
    if not e.inside:
        held_idle = bool(e.devices) and all(d.busy is not None and d.busy < _IDLE_BUSY for d in e.devices)
        return "held_idle" if held_idle else "unknown"
    young = not e.steps_ever and (e.age or 0.0) < STARTUP_STALL_FACTOR * stalled_after
    if _without_progress(e, stalled_after) and not young:
        expected = e.steps_ever and not e.interactive
        return "stalled" if expected else "held_idle" if e.devices else "not_training"
    if e.phase in _PHASES:
        return _PHASES[e.phase]
    if e.steps or (e.steps_ever and e.since_progress is not None and e.since_progress < stalled_after):
        if e.batches and not e.steps:
            return "evaluating"
        on_cpu = bool(e.parameters) and not any(kind != "cpu" for kind in e.parameters)
        return "training_on_cpu" if on_cpu else "training"
    if e.steps_ever:
        return "unknown"
    if e.batches:
        return "evaluating"
    return "starting" if young else "not_training"


def _without_progress(e: Evidence, stalled_after: float) -> bool:
    """Return whether there was no step and no batch for `stalled_after` seconds, outside of a phase without steps."""
    other_phase = e.phase in _PHASES and (e.phase_age or 0.0) < stalled_after
    return e.since_progress is not None and e.since_progress >= stalled_after and not other_phase


def _causes(e: Evidence, state: str) -> dict[str, float]:
    """Return the share of the held GPU time that each cause cost; the unexplained part is "unknown"."""
    if state == "training_on_cpu":
        return {_why_on_cpu(e): 1.0} if e.host_has_gpu else {}
    if state == "held_idle":
        return {"unused_gpus": 1.0}
    if (state == "unknown" or (state == "training" and e.window < MIN_EVIDENCE_SECONDS)) and e.devices:
        idle = [1.0 - device.busy for device in e.devices if device.busy is not None]
        return {"unknown": sum(idle) / len(e.devices)}
    if state != "training" or not e.devices:
        return {}
    causes: dict[str, float] = {}
    held = len(e.devices) + e.unused_devices
    for device in e.devices:
        for name, share in _of_device(e, device).items():
            causes[name] = causes.get(name, 0.0) + share / held
    if e.unused_devices:
        causes["unused_gpus"] = e.unused_devices / held
    return _with_root_cause(e, causes)


def _why_on_cpu(e: Evidence) -> str:
    if e.build == "cpu":
        return "no_cuda_build"
    if e.visible_devices == 0:
        return "no_visible_device"
    if e.driver_too_old:
        return "driver_mismatch"
    if e.arch_supported is False:
        return "unsupported_arch"
    return "model_on_cpu"


def _of_device(e: Evidence, device: DeviceEvidence) -> dict[str, float]:
    """Return the shares of one GPU's time that each cause cost: in gaps between kernels, and while kernels ran."""
    if device.busy is None:
        return {}
    own = device.busy if device.own_busy is None else min(device.own_busy, device.busy)
    # Pauses are not lost time. The GPU is assumed to be idle in all of a pause.
    idle = max(0.0, 1.0 - device.busy - e.paused)
    waiting = _waiting_for_peers(e, device, own)
    contention = max(0.0, device.busy - own - device.unowned_busy)
    on_device = _slow_kernels(e, device, own - waiting) | {"contention": contention}
    # Slow kernels slow the training down only if it waits for the GPU, and gaps show that it does not.
    weight = max(0.0, 1.0 - 3.0 * idle)
    shares = {name: share * weight for name, share in on_device.items()}
    return _gaps(e, device, idle) | shares | {"waiting_for_peers": waiting}


def _gaps(e: Evidence, device: DeviceEvidence, idle: float) -> dict[str, float]:
    """Return the causes of the time in which no kernel ran, `idle` as a share of the time."""
    shares: dict[str, float] = {}
    left = idle
    waited = e.data_wait if e.data_wait_exposed is None else e.data_wait_exposed
    candidates = {
        "data_loading": waited or 0.0,
        "transfer": (device.transfer or 0.0) if (device.transfer or 0.0) > 0.2 else 0.0,
        "memory_pressure": left if e.retries or e.ooms else 0.0,
    }
    for name, share in candidates.items():
        shares[name] = min(share, left)
        left -= shares[name]
    # With steps from the hook, the waits for the loader are known and the rest of the gaps is work of the host. Copies
    # from pinned memory overlap with kernels; other copies may fill the gaps unless the PCIe traffic is known.
    copies_known = device.transfer is not None or e.pinned is True
    known = e.inside and e.steps > 0 and waited is not None and copies_known
    shares["host_bound" if known else "unknown"] = left
    return shares


def _waiting_for_peers(e: Evidence, device: DeviceEvidence, busy: float) -> float:
    """Return the share of time in which a collective waits for slower ranks: its kernel draws little power."""
    low_power = (device.power is None or device.power < 0.85) and (
        device.tensor_active is None or device.tensor_active < 0.6
    )
    if (e.world_size or 1) < 2 or e.local_work is None or not low_power:
        return 0.0
    return min(busy, max(0.0, 1.0 - e.local_work))


def _slow_kernels(e: Evidence, device: DeviceEvidence, computing: float) -> dict[str, float]:
    """Return the causes of kernels that ran longer than necessary; `computing` is the share of time with kernels."""
    longer: dict[str, float] = {}
    slowed = max(device.thermal or 0.0, (device.power_capped or 0.0) if device.power_limit_lowered else 0.0)
    if slowed and device.clock is not None and device.clock < 0.85:
        longer["throttled"] = slowed * (1.0 - device.clock)
    alone = device.own_busy is None or device.own_busy > (device.busy or 0.0) - _MIN_CAUSE_SHARE
    # The counters of multiprocessors cover all processes on the GPU.
    if device.sm_active is not None and computing > 0.2 and alone:
        filled = min(1.0, device.sm_active / computing)
        if filled < _FILLED_SM_ACTIVE:
            longer["underfilled"] = 1.0 - filled
        elif e.fp32_only and device.tensor_active is not None and device.tensor_active < 0.01:
            longer["precision_unused"] = 0.5  # TF32 is at least twice as fast on every GPU that supports it
    # The sum is the share that removing all causes would save, divided in proportion to the share of each cause alone.
    together = 1.0 - math.prod(1.0 - part for part in longer.values())
    total = sum(longer.values())
    return {name: computing * together * part / total for name, part in longer.items()}


def _with_root_cause(e: Evidence, causes: dict[str, float]) -> dict[str, float]:
    """Move shares of a slow loader or host to withheld CPU or memory, if that is the reason for the slowness."""
    withheld = {"cpu_limited": e.cpu_throttled or 0.0, "memory_swap_io": e.memory_pressure or 0.0}
    root, share = max(withheld.items(), key=lambda item: item[1])
    slow = {name: causes[name] for name in ("data_loading", "host_bound", "unknown") if causes.get(name)}
    total = sum(slow.values())
    if share < 0.2 or not total:
        return causes
    taken = min(total, share)
    if taken < _ROOT_CAUSE_SHARE * total:
        # The work is slow even without withheld resources: each gets the share that the run would gain without it.
        taken = total * taken / (total + taken)
    return causes | {name: part * (1.0 - taken / total) for name, part in slow.items()} | {root: taken}


def _primary(causes: Mapping[str, float], before: str | None) -> str | None:
    if not causes:
        return None
    if causes.get("waiting_for_peers", 0.0) >= _MIN_PRIMARY_SHARE:
        return "waiting_for_peers"  # otherwise a faster rank would only wait longer
    first = max(causes, key=lambda name: causes[name])
    held = causes.get(before or "", 0.0)
    if held >= _MIN_PRIMARY_SHARE and causes[first] - held < _MIN_LEAD_SHARE:
        return before
    return first if causes[first] >= _MIN_PRIMARY_SHARE else None
