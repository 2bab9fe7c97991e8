"""The state of a process: facts from its evidence, and a table of transitions on these facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpugauge.verdict.causes import STATES
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.wire.shares import NAMED_PHASES

STALLED_SECONDS = 300.0
STALLED_STEPS = 10.0  # a training is not stalled before this many of its own slow steps
STARTUP_STALL_FACTOR = 2.0  # time until the first step, as a multiple of the time until a training is stalled
# Time in one phase without steps, as the same multiple: 30 minutes, the longest default timeout of a process group.
PHASE_STALL_FACTOR = 6.0
MIN_EVIDENCE_SECONDS = 15.0  # of the window, before a cause is reported
_IDLE_BUSY = 0.01  # a GPU that is less busy, as a ratio, is idle
_COMPUTES = 0.02  # share of the time in which a process that keeps a GPU busy trains on it

# Phases that are states of the same name. All other phases are parts of the training loop.
WORKING = frozenset({"training", "training_on_cpu"}) | NAMED_PHASES
RESTING = frozenset(STATES) - WORKING
_EVERY = frozenset(STATES)


class StateFacts(NamedTuple):
    """The facts that decide on a transition. `now` is the state by the present phase, `mostly` the state that took the
    largest part of the last 10 s; None means unknown.
    """

    inside: bool = True  # the process reports through the hook
    holds_gpus: bool = False
    idle: bool | None = None  # no kernel of the process runs on its GPUs
    quiet: bool = False  # no step and no batch for the limit
    trains: bool = False  # steps are expected: it made some, or its phase is training
    spins: bool = False  # all GPUs of its job have only waited for the limit
    now: str | None = None
    mostly: str | None = None


class Transition(NamedTuple):
    """From one of the states `sources` to `to`, if the condition `when` holds."""

    sources: frozenset[str]
    when: str
    to: str


_CONDITIONS: Mapping[str, tuple[str, Callable[[StateFacts, str], bool]]] = {
    "outside, idle": (
        "there is no hook, and no kernel ran on its GPUs for 15 s or more",
        lambda f, _: not f.inside and f.holds_gpus and f.idle is True,
    ),
    "outside, waiting": (
        "there is no hook, and for the limit all GPUs of its job were busy, and drew little, steady power: after more, "
        "or while NCCL said that ranks are behind or missing",
        lambda f, _: f.spins,
    ),
    "outside": ("there is no hook, and a GPU is busy or its load is not known", lambda f, _: not f.inside),
    "quiet, expected to step": (
        "it was training, is no notebook, and made no step and got no batch for the limit",
        lambda f, _: f.quiet and f.trains,
    ),
    "quiet, GPU idle": (
        "nothing trains, and no kernel of the process runs on the GPUs that it holds",
        lambda f, _: f.quiet and f.holds_gpus and f.idle is True,
    ),
    "quiet, GPU unknown": (
        "nothing trains, and the load of a GPU that it holds is not known",
        lambda f, _: f.quiet and f.holds_gpus and f.idle is None,
    ),
    "quiet": ("nothing trains, and it holds no GPU, or computes something else on it", lambda f, _: f.quiet),
    "now": ("the present phase belongs to the state", lambda f, to: f.now == to),
    "most of 10 s": ("the state took the largest part of the last 10 s", lambda f, to: f.mostly == to),
    "not known": ("no phase, step or batch is known", lambda f, _: f.now is None),
}

# The first row that applies decides.
TRANSITIONS = (
    Transition(_EVERY, "outside, idle", "held_idle"),
    Transition(_EVERY, "outside, waiting", "stalled"),
    Transition(_EVERY, "outside", "unknown"),
    Transition(_EVERY, "quiet, expected to step", "stalled"),
    Transition(_EVERY, "quiet, GPU idle", "held_idle"),
    Transition(_EVERY, "quiet, GPU unknown", "unknown"),
    Transition(_EVERY, "quiet", "not_training"),
    *(Transition(RESTING, "now", state) for state in ("starting", *sorted(WORKING))),
    *(Transition(WORKING, "most of 10 s", state) for state in ("starting", *sorted(WORKING))),
    Transition(_EVERY, "not known", "unknown"),
)


def transition(before: str, facts: StateFacts) -> Transition:
    """Return the row of the table that applies in the state `before`."""
    return next(row for row in TRANSITIONS if before in row.sources and _CONDITIONS[row.when][1](facts, row.to))


def facts_of(e: Evidence, before: str, stalled_seconds: float = STALLED_SECONDS) -> StateFacts:
    """Return the facts from the evidence. The limit is `stalled_seconds` without a step or batch, or ten of the job's
    own slow steps if that is longer; until the first step it is twice, in a phase without steps six times as long.
    """
    limit = max(stalled_seconds, STALLED_STEPS * (e.slow_step or 0.0))
    if not e.inside:
        observed = e.window >= MIN_EVIDENCE_SECONDS
        idle, spins = _idle(e.devices) if observed else None, e.spins is not None and e.spins >= stalled_seconds
        return StateFacts(inside=False, holds_gpus=bool(e.devices), idle=idle, spins=spins)
    on_cpu, began = trains_on_cpu(e), begun(e)
    recent = _recent(e, before, began, on_cpu)
    # In a tie the state does not change.
    mostly = max(recent, key=lambda state: (recent[state], state == before)) if recent else None
    if e.phase is None:
        now = _by_counts(e, limit)
    else:
        # A wait for a batch belongs to the phase around it.
        now = mostly if e.phase == "loading" and mostly else state_of_phase(e.phase, began, on_cpu)
    return StateFacts(
        holds_gpus=bool(e.devices),
        idle=_idle(e.devices),
        quiet=_quiet(e, began, limit),
        trains=not e.interactive and bool(e.steps_ever or (began and now in _TRAINING)),
        now=now,
        mostly=mostly or now,
    )


_TRAINING = ("training", "training_on_cpu")


def begun(e: Evidence) -> bool:
    """Return whether there was a step or a batch. Where neither is known, training or evaluating counts."""
    if e.steps_ever is None and e.batches_ever is None:
        return e.worked
    return bool(e.steps_ever or e.batches_ever)


def trains_on_cpu(e: Evidence) -> bool:
    """Return whether all parameters are on the CPU, and it is known to keep no GPU busy: parameters that are offloaded
    to the CPU (FSDP, ZeRO) are used on the GPU. Where they are unknown: whether the process uses no GPU.
    """
    if e.parameters:
        loads = [device.busy if device.own_busy is None else device.own_busy for device in e.devices]
        offloaded = any(load is None or load >= _COMPUTES for load in loads)
        return not offloaded and all(kind == "cpu" for kind in e.parameters)
    return e.inside and not e.devices and not e.torch_devices


def _recent(e: Evidence, before: str, began: bool, on_cpu: bool) -> dict[str, float]:
    """Return the seconds in each state during the last 10 s. Before the first step or batch the training loop is
    `starting`; afterwards the time before it does not count.
    """
    spent = {phase: s for phase, s in e.recent.items() if s > 0 and not (began and phase == "starting")}
    loading = spent.pop("loading", 0.0)
    evaluating, training = spent.get("evaluating", 0.0), spent.get("training", 0.0)
    # A wait that has not ended is not known to belong to an evaluation.
    served = evaluating > training or (not spent and before == "evaluating")
    if loading:
        owner = "evaluating" if served else "training"
        spent[owner] = spent.get(owner, 0.0) + loading
    found: dict[str, float] = {}
    for phase, seconds in spent.items():
        state = state_of_phase(phase, began, on_cpu)
        found[state] = found.get(state, 0.0) + seconds
    return found


def state_of_phase(phase: str, began: bool, on_cpu: bool) -> str:
    """Return the state of a process in a phase. Phases without a name of their own are parts of the training loop."""
    if phase in NAMED_PHASES:
        return phase
    if not began:
        return "starting"
    return "training_on_cpu" if on_cpu else "training"


def _by_counts(e: Evidence, limit: float) -> str | None:
    """Return the state of a process without a shared record, from its steps and batches; None if it is unknown."""
    if not begun(e):
        return "starting"
    if e.steps == 0 and e.batches:
        return "evaluating"
    if e.steps or (e.steps_ever and e.since_progress is not None and e.since_progress < limit):
        return "training_on_cpu" if trains_on_cpu(e) else "training"
    return None


def _quiet(e: Evidence, began: bool, limit: float) -> bool:
    """Return whether nothing happens: no step and no batch for the limit, and neither the process nor another rank of
    its job is in a phase without steps.
    """
    # A server generates, and a program that only evaluates may hold its GPU for nothing.
    factor = PHASE_STALL_FACTOR if e.steps_ever or (e.world_size or 1) > 1 else STARTUP_STALL_FACTOR
    if e.excused or (e.phase in NAMED_PHASES and (e.phase_age or 0.0) < factor * limit):
        return False
    limit = limit if e.steps_ever else STARTUP_STALL_FACTOR * limit
    waited = e.since_progress if began else e.age
    return waited is not None and waited >= limit


def _idle(devices: tuple[DeviceEvidence, ...]) -> bool | None:
    """Return whether no GPU is busy with the process; None if that is not known of a GPU."""
    loads = [device.busy if device.own_busy is None else device.own_busy for device in devices]
    if any(load is not None and load >= _IDLE_BUSY for load in loads):
        return False
    return None if None in loads else True


def as_markdown() -> str:
    """Return the table of the transitions for docs/verdict.md."""
    rows: dict[tuple[frozenset[str], str], list[str]] = {}
    for row in TRANSITIONS:
        rows.setdefault((row.sources, row.when), []).append(row.to)
    names = {_EVERY: "every state", RESTING: "resting", WORKING: "working"}
    lines = ["| from | to | condition |", "|---|---|---|"]
    for (sources, when), targets in rows.items():
        lines.append(f"| {names[sources]} | {', '.join(f'`{to}`' for to in targets)} | {_CONDITIONS[when][0]} |")
    return "\n".join(lines)
