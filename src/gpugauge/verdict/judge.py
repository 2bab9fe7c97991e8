"""From evidence to state and causes. It says less where less is known, and never more than it can know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpugauge.verdict.evidence import DeviceEvidence, Evidence

STALLED_SECONDS = 300.0
STALLED_STEPS = 10.0  # of the job's own slow steps
STARTING_PATIENCES = 2.0  # for how many times as long as a training may stand still one may take to begin
LEAST_SECONDS = 15.0  # of evidence before a cause is named
_IDLE = 0.01
_FILLED = 0.7  # share of the multiprocessors below which kernels are too small for the GPU
_LEAST = 0.05  # a cause below this share is noise
_PRIMARY = 0.10  # what a cause must take to be named
_LEAD = 0.05  # and by how much it must lead the one named before
_ROOT = 0.9  # the share of the gaps from which on what is withheld explains them alone

# What cannot be told without the performance counters of the GPU (GPM).
NEED_COUNTERS = frozenset({"underfilled", "precision_unused", "transfer"})

# Phases that the hook tells, and the states that they are.
_PHASES = {
    "compiling": "compiling",
    "evaluating": "evaluating",
    "checkpointing": "checkpointing",
    "generating": "generating",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`causes` are shares of the GPU time held that were lost to each; `limited_by` is the one to look at first."""

    state: str
    confidence: Literal["inside", "outside"]
    causes: Mapping[str, float] = field(default_factory=dict)
    limited_by: str | None = None
    undecidable: frozenset[str] = frozenset()


def judge(e: Evidence, before: Verdict | None = None, stalled_seconds: float = STALLED_SECONDS) -> Verdict:
    """Return the verdict on one process over one window; `before` gives the named cause its hysteresis. After
    `stalled_seconds` without a step or batch it is stalled, if its own slow steps do not take nearly as long.
    """
    state = _state(e, max(stalled_seconds, STALLED_STEPS * (e.slow_step or 0.0)))
    causes = {name: round(share, 4) for name, share in _causes(e, state).items() if share >= _LEAST}
    # Outside, and as long as little is known, "unknown" is no finding, only what was counted.
    found = state != "unknown" and (e.window >= LEAST_SECONDS or "unknown" not in causes)
    limited_by = _primary(causes, before.limited_by if before else None) if found else None
    measured = any(device.sm_active is not None for device in e.devices)
    undecidable = frozenset() if measured or not e.devices else NEED_COUNTERS
    return Verdict(state, "inside" if e.inside else "outside", causes, limited_by, undecidable)


def _state(e: Evidence, patience: float) -> str:
    if not e.inside:
        held_idle = bool(e.devices) and all(device.busy is not None and device.busy < _IDLE for device in e.devices)
        return "held_idle" if held_idle else "unknown"
    young = not e.steps_ever and (e.age or 0.0) < STARTING_PATIENCES * patience
    if _frozen(e, patience) and not young:
        expected = e.steps_ever and not e.interactive
        return "stalled" if expected else "held_idle" if e.devices else "not_training"
    if e.phase in _PHASES:
        return _PHASES[e.phase]
    if e.steps or (e.steps_ever and e.since_progress is not None and e.since_progress < patience):
        if e.batches and not e.steps:
            return "evaluating"
        on_cpu = bool(e.parameters) and not any(kind != "cpu" for kind in e.parameters)
        return "training_on_cpu" if on_cpu else "training"
    if e.steps_ever:
        return "unknown"
    if e.batches:
        return "evaluating"
    return "starting" if young else "not_training"


def _frozen(e: Evidence, patience: float) -> bool:
    """Neither steps nor batches for so long that the job's own pace does not explain it."""
    busy_phase = e.phase in _PHASES and (e.phase_age or 0.0) < patience
    return e.since_progress is not None and e.since_progress >= patience and not busy_phase


def _causes(e: Evidence, state: str) -> dict[str, float]:
    """Divide the time that the held GPUs lost among the causes; what nothing explains is unknown."""
    if state == "training_on_cpu":
        return {_why_on_cpu(e): 1.0} if e.host_has_gpu else {}
    if state == "held_idle":
        return {"unused_gpus": 1.0}
    if (state == "unknown" or (state == "training" and e.window < LEAST_SECONDS)) and e.devices:
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
    return _rooted(e, causes)


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
    """Return the shares of one GPU's time that were lost: in gaps first, then in what looked busy."""
    if device.busy is None:
        return {}
    own = device.busy if device.own_busy is None else min(device.own_busy, device.busy)
    # What a pause left idle is no fault of the training; that it was idle throughout is the most that can be said.
    idle = max(0.0, 1.0 - device.busy - e.paused)
    spin = _spin(e, device, own)
    on_device = _slow_kernels(e, device, own - spin) | {"contention": max(0.0, device.busy - own - device.unowned_busy)}
    # What slows kernels down slows the training only as far as the GPU is what it waits for: gaps mean that it is not.
    awaited = max(0.0, 1.0 - 3.0 * idle)
    shares = {name: share * awaited for name, share in on_device.items()}
    return _gaps(e, device, idle) | shares | {"waiting_for_peers": spin}


def _gaps(e: Evidence, device: DeviceEvidence, idle: float) -> dict[str, float]:
    """Who is to blame for the time in which no kernel ran."""
    shares: dict[str, float] = {}
    left = idle
    waited = e.data_wait if e.data_wait_exposed is None else e.data_wait_exposed
    wanted = {
        "data_loading": waited or 0.0,
        "transfer": (device.transfer or 0.0) if (device.transfer or 0.0) > 0.2 else 0.0,
        "memory_pressure": left if e.retries or e.ooms else 0.0,
    }
    for name, share in wanted.items():
        shares[name] = min(share, left)
        left -= shares[name]
    # A hook that counts steps has seen the loader's part; what remains of the gaps is the host's own work.
    # Copies of pinned memory run beside the kernels; where nobody counts the bytes, others may be what fills the gaps.
    copies_known = device.transfer is not None or e.pinned is True
    known = e.inside and e.steps > 0 and waited is not None and copies_known
    shares["host_bound" if known else "unknown"] = left
    return shares


def _spin(e: Evidence, device: DeviceEvidence, busy: float) -> float:
    """The share in which a collective waits for slower ranks: a kernel on few multiprocessors, with little power."""
    cool = (device.power is None or device.power < 0.85) and (
        device.tensor_active is None or device.tensor_active < 0.6
    )
    if (e.world_size or 1) < 2 or e.local_work is None or not cool:
        return 0.0
    return min(busy, max(0.0, 1.0 - e.local_work))


def _slow_kernels(e: Evidence, device: DeviceEvidence, computing: float) -> dict[str, float]:
    """Who is to blame for kernels that ran longer than they had to, each by the part that it made them longer."""
    longer: dict[str, float] = {}
    slowed = max(device.thermal or 0.0, (device.power_capped or 0.0) if device.power_limit_lowered else 0.0)
    if slowed and device.clock is not None and device.clock < 0.85:
        longer["throttled"] = slowed * (1.0 - device.clock)
    alone = device.own_busy is None or device.own_busy > (device.busy or 0.0) - _LEAST
    # With a neighbour on the GPU its multiprocessors cannot be told apart.
    if device.sm_active is not None and computing > 0.2 and alone:
        filled = min(1.0, device.sm_active / computing)
        if filled < _FILLED:
            longer["underfilled"] = 1.0 - filled
        elif e.fp32_only and device.tensor_active is not None and device.tensor_active < 0.01:
            longer["precision_unused"] = 0.5  # TF32 is at least twice as fast on every GPU that has it
    # Together they take the share that removing all of them would save, divided as each alone would.
    together = 1.0 - math.prod(1.0 - part for part in longer.values())
    total = sum(longer.values())
    return {name: computing * together * part / total for name, part in longer.items()}


def _rooted(e: Evidence, causes: dict[str, float]) -> dict[str, float]:
    """A loader or a host that is slow because the kernel withholds CPU or memory is not itself to blame."""
    withheld = {"cpu_limited": e.cpu_throttled or 0.0, "memory_swap_io": e.memory_pressure or 0.0}
    root, share = max(withheld.items(), key=lambda item: item[1])
    slow = {name: causes[name] for name in ("data_loading", "host_bound", "unknown") if causes.get(name)}
    total = sum(slow.values())
    if share < 0.2 or not total:
        return causes
    taken = min(total, share)
    if taken < _ROOT * total:
        # Work that is slow also when nothing is withheld: both are in the gap, each by what the run would gain without.
        taken = total * taken / (total + taken)
    return causes | {name: part * (1.0 - taken / total) for name, part in slow.items()} | {root: taken}


def _primary(causes: Mapping[str, float], before: str | None) -> str | None:
    if not causes:
        return None
    if causes.get("waiting_for_peers", 0.0) >= _PRIMARY:
        return "waiting_for_peers"  # a faster rank would only wait longer
    first = max(causes, key=lambda name: causes[name])
    held = causes.get(before or "", 0.0)
    if held >= _PRIMARY and causes[first] - held < _LEAD:
        return before
    return first if causes[first] >= _PRIMARY else None
