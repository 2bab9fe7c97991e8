"""Metric rows of the verdict: of the current one, and integrals over the life of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpugauge.metric import Metric, Table
from gpugauge.node.node import Diagnosis, Judged
from gpugauge.verdict.causes import CAUSES, STATES
from gpugauge.verdict.facts import Progress
from gpugauge.verdict.meter import PhaseMeter
from gpugauge.verdict.summary import Summary

_live, _process = Table[Judged]("process"), Table["Account"]("process")
_cause = Table[Judged]("process", "cause")

_STATE_VALUES = {state: {other: int(other == state) for other in STATES} for state in STATES}


@dataclass(slots=True)
class Account:
    """The exported verdict on one process, and its integrals. Times are monotonic seconds."""

    judged: Judged
    seen: float  # time of the last verdict
    held: float = 0.0  # GPUs
    progress: Progress | None = None
    meter: PhaseMeter | None = None  # None without a shared record
    began: bool = False  # with a step or batch
    session: str = ""
    earlier: float = -1  # steps and batches of the programs before, in the same process
    on_cpu: bool = False
    live: bool = True
    run: tuple[str, ...] | None = None  # of the ranks that wait for each other
    excuses: bool = False  # by itself it is in a phase without steps: the other ranks may wait for it
    loader: Diagnosis | None = None  # the last one with a number of workers that gains something
    summary: Summary = field(default_factory=Summary)


def _verdict_info(judged: Judged) -> dict[tuple[str, ...], int]:
    return {(judged.verdict.confidence, ",".join(sorted(judged.verdict.undecidable))): 1}


def _loader(read: Callable[[Diagnosis], float | None]) -> Callable[[Judged], float | None]:
    return lambda judged: read(judged.loader) if judged.loader else None


LIVE: tuple[Metric, ...] = (
    STATE := _live.gauge(
        "training_state",
        "State of the process; exactly one state is 1.",
        lambda j: _STATE_VALUES[j.verdict.state],
        "state",
    ),
    LIMITED_BY := _cause.gauge(
        "training_limited_by",
        "1 for the main cause of the lost GPU time, which should be removed first; absent if no cause is large enough.",
        lambda j: {j.verdict.limited_by: 1} if j.verdict.limited_by else None,
    ),
    _cause.gauge(
        "training_limited_by_ratio",
        "Share of the held GPU time that was lost to each cause in the last minute.",
        lambda j: j.verdict.causes,
    ),
    VERDICT := _live.gauge(
        "training_verdict_info",
        "Confidence of the verdict: inside with the hook, outside without. undecidable lists the causes that cannot "
        "be determined, because the GPU does not have the performance counters, or the waits for batches are not "
        "known. Always 1.",
        _verdict_info,
        *("confidence", "undecidable"),
    ),
    _live.gauge(
        "training_step_share_ratio",
        "Share of the last minute in each part of the training, without its start-up: waits for batches (data), waits "
        "for other ranks (peers), evaluation, checkpoints, compilation, generation, and the rest. A part that is not "
        "known is absent, and its time is in the rest.",
        lambda j: j.shares,
        "part",
    ),
    _live.gauge(
        "training_mfu_ratio",
        "Model FLOPs utilization: torch_model_flops_total of the steps that ended in the last minute, over their time "
        "and the dense peak of the process's GPUs for matmul_dtype of torch_build_info. Absent if the FLOPs, the dtype "
        "or the peak is not known.",
        lambda j: j.mfu,
    ),
    SPEEDUP := _cause.gauge(
        "training_expected_speedup_ratio",
        "Expected factor of the step rate if this cause alone was removed. Absent where the evidence does not decide "
        "it, and where it is below 1.05.",
        lambda j: {cause: gain.expected for cause, gain in j.gains.items()},
    ),
    SPEEDUP_LOWER := _cause.gauge(
        "training_expected_speedup_lower_ratio",
        "Lower bound of training_expected_speedup_ratio. It is 1 where the change may remove a part of the cause only.",
        lambda j: {cause: gain.lower for cause, gain in j.gains.items()},
    ),
    SPEEDUP_UPPER := _cause.gauge(
        "training_expected_speedup_upper_ratio",
        "Upper bound of training_expected_speedup_ratio.",
        lambda j: {cause: gain.upper for cause, gain in j.gains.items()},
    ),
    SPEEDUP_NEXT := _live.gauge(
        "training_expected_speedup_info",
        "The limit that a step meets next, after the cause was removed: another cause, gpu for the kernels themselves, "
        "or cpu for the computation on the CPU. Always 1.",
        lambda j: {(cause, gain.next): 1 for cause, gain in j.gains.items()},
        *("cause", "next"),
    ),
    LOADER_LIMIT := _live.gauge(
        "training_loader_limited_by",
        "1 for the limit of a loader for which the training waits (docs/verdict.md); absent while it does not wait, "
        "and where the evidence does not decide.",
        lambda judged: {judged.loader.reason: 1} if judged.loader else None,
        "reason",
    ),
    _live.gauge(
        "training_loader_workers_recommended",
        "Number of loader workers that removes the waits as far as CPUs and memory allow; the present number if more "
        "will not help.",
        _loader(lambda loader: loader.workers),
    ),
    LOADER_SPEEDUP := _live.gauge(
        "training_loader_expected_speedup_ratio",
        "Expected factor of the step rate with the recommended number of loader workers, or for worker_start with "
        "workers that stay; 1 if more will not help.",
        _loader(lambda loader: loader.speedup),
    ),
    LOADER_SPEEDUP_LOWER := _live.gauge(
        "training_loader_expected_speedup_lower_ratio",
        "Lower bound of training_loader_expected_speedup_ratio. It is 1 where storage, or another thing that batches "
        "wait for, may not serve several workers at once.",
        _loader(lambda loader: loader.lower),
    ),
)

LASTING: tuple[Metric, ...] = (
    SECONDS := _process.counter(
        "training_seconds_total",
        "Time of the process in each state, from the begin of its session; exact for states that are phases of the "
        "hook, however short.",
        lambda a: a.summary.seconds,
        "state",
    ),
    HELD := _process.counter(
        "training_gpu_held_seconds_total",
        "GPU time held by the process: number of GPUs times seconds, of GPUs whose load is known. The time of a GPU "
        "that several processes hold is divided among them, by their busy time.",
        lambda a: a.summary.held,
    ),
    LOST := _process.counter(
        "training_lost_seconds_total",
        "Lost GPU time by cause; the sum over all causes, including unknown, is the total lost GPU time.",
        lambda a: a.summary.lost,
        "cause",
        # Most causes take no time from most trainings. The rules need `unknown`: a process without losses has a load.
        sparse=CAUSES.keys() - {"unknown"},
    ),
)
