"""Stories for the alerts: the series of a machine on which an alert must fire, and of one on which it must not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpugauge.artifacts.rules.load import alert_of_cause, severity_of_cause
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.driver.vendors.nvidia import xid_labels
from gpugauge.faults.table import FAULTS
from gpugauge.verdict.causes import CAUSES

MINUTE = 60
UUID = {"uuid": "GPU-0"}
# The labels of an alert about the GPU.
GPU = {**UUID, "instance": "node-1", "index": "3"}
JOB = {"workload_job_kind": "jobset", "workload_namespace": "ml", "workload_job": "llm"}
ALLOCATED = {"workload_job_kind": "slurm", "workload_job": "7201", "workload_user": "ann"}
_PROCESS_0 = {"process": "p0"}
DEFAULT, TWO_LEVELS, PER_CAUSE = Parameters(), Parameters(critical=0.3), Parameters(per_cause=True)


@dataclass(frozen=True)
class Row:
    """A series: its value in the bad phase and in the good phase; for a counter, its increase per second. With `clock`
    it is added to the time.
    """

    name: str
    labels: Mapping[str, str]
    bad: float | None  # None: no series
    good: float | None
    counter: bool = False
    clock: bool = False

    def values(self, phases: list[tuple[str, int]]) -> str:
        """Return the values in the phases, one for each minute, in the notation of promtool: `1 1 _ 2`."""
        values: list[str] = []
        total, rate, last = 0.0, 0.0, "_"
        for phase, minutes in phases:
            now = {"bad": self.bad, "good": self.good}.get(phase)
            # No scrapes in both: a restart resets counters, in a gap they continue to rise.
            total = 0.0 if phase == "restart" else total
            rate = now or 0.0 if phase in {"bad", "good"} else rate if phase == "gap" else 0.0
            for _ in range(minutes):
                total += rate * MINUTE
                known = total if self.counter else len(values) * MINUTE + (now or 0) if self.clock else now
                value = "_" if now is None else f"{known:g}"
                # Prometheus writes a staleness marker at the end of a series.
                values.append("stale" if value == "_" and last not in {"_", "stale"} else value)
                last = value
        return " ".join(values)


@dataclass(frozen=True)
class Story:
    """A story. `identity` is the exact set of labels of the alert, without its name and severity."""

    alert: str
    identity: Mapping[str, str]
    rows: tuple[Row, ...]
    severity: str = "warning"
    lasting: bool = True  # False for a state or an event, whose alert fires at once
    parameters: Parameters = DEFAULT


def _same(name: str, value: float, labels: Mapping[str, str], *, counter: bool = False) -> Row:
    return Row(name, labels, value, value, counter)


_PROCESS = (
    _same(
        "gpu_process_host_info", 1, {**_PROCESS_0, "pid": "7", "torch_build": "cuda", "workload_user": "1000", **JOB}
    ),
    # The same process a second time, as when two info series overlap, and a healthy rank of the same job.
    _same(
        "gpu_process_host_info", 1, {**_PROCESS_0, "pid": "8", "torch_build": "cuda", "workload_user": "1000", **JOB}
    ),
    _same("gpu_process_host_info", 1, {"process": "p1", "torch_build": "cuda", "workload_user": "1000", **JOB}),
    _same("training_start_timestamp_seconds", -7200, _PROCESS_0),
)


def _state(bad: str, good: str = "training") -> tuple[Row, ...]:
    return tuple(
        Row(name, {**_PROCESS_0, "state": state}, float(state == bad), float(state == good), counter)
        for state in (bad, good)
        for name, counter in (("training_state", False), ("training_seconds_total", True))
    )


def _lost(cause: str, share: float, rest: float = 0.05) -> tuple[Row, ...]:
    return (
        *_PROCESS,
        *(
            _same(name, 1, {**_PROCESS_0, "state": "training"}, counter=c)
            for name, c in (("training_state", False), ("training_seconds_total", True))
        ),
        _same("training_gpu_held_seconds_total", 1, _PROCESS_0, counter=True),
        Row("training_lost_seconds_total", {**_PROCESS_0, "cause": cause}, share, 0.1, counter=True),
        _same("training_lost_seconds_total", rest, {**_PROCESS_0, "cause": "unknown"}, counter=True),
    )


def _stalled(busy: float) -> tuple[Row, ...]:
    return (
        *_PROCESS,
        *_state("stalled"),
        _same("gpu_process_memory_used_bytes", 1e9, {**_PROCESS_0, **UUID}),
        Row("gpu_busy_seconds_total", {**UUID, "engine": "gpu"}, busy, 0.5, counter=True),
        _same("gpu_observed_seconds_total", 1, {**UUID, "engine": "gpu"}, counter=True),
    )


def _behind() -> tuple[Row, ...]:
    """Two ranks that make no progress; the last waits for the first."""
    p1, elsewhere, waiting = {"process": "p1"}, {"position": "elsewhere", "function": ""}, {"position": "waiting"}
    return (
        *_stalled(0.9),
        Row("training_state", {**p1, "state": "stalled"}, 1, 0),
        *(
            _same("torch_process_info", 1, {"process": f"p{rank}", "rank": str(rank), "world_size": "2"})
            for rank in range(2)
        ),
        Row("training_rank_position", {**_PROCESS_0, **elsewhere}, 1, None),
        Row("training_rank_position", {**p1, **waiting, "function": "all_reduce"}, 1, None),
    )


def _unused() -> tuple[Row, ...]:
    return (
        _same("gpu_allocation_info", 1, {**UUID, **ALLOCATED}),
        Row("gpu_busy_seconds_total", {**UUID, "engine": "gpu"}, 0, 0.5, counter=True),
        _same("gpu_observed_seconds_total", 1, {**UUID, "engine": "gpu"}, counter=True),
    )


def ranks(slow: float) -> tuple[Row, ...]:
    """Four ranks on two nodes; the last is slow."""
    ranks = range(4)
    work = {rank: 0.9 if rank == 3 else 0.9 / slow for rank in ranks}
    return tuple(
        row
        for rank in ranks
        for row in (
            Row(
                "torch_local_work_seconds_total",
                {"process": f"p{rank}", "instance": f"node-{1 + rank // 2}"},
                work[rank],
                0.9,
                counter=True,
            ),
            *(
                _same(name, 1, {"process": f"p{rank}", "instance": f"node-{1 + rank // 2}", **labels})
                for name, labels in (
                    ("gpu_process_host_info", {"workload_user": "1000", **JOB}),
                    ("torch_process_info", {"rank": str(rank), "world_size": "4", "run_id": "r"}),
                    ("training_state", {"state": "training"}),
                )
            ),
            _same("training_start_timestamp_seconds", -7200, {"process": f"p{rank}"}),
            _same("training_seconds_total", 1, {"process": f"p{rank}", "state": "training"}, counter=True),
        )
    )


_ON_CPU = (
    *_PROCESS,
    *_state("training_on_cpu"),
    Row("training_limited_by", {**_PROCESS_0, "cause": "model_on_cpu"}, 1, None),
)
_CPU_BUILD = (
    _same("gpu_process_host_info", 1, {**_PROCESS_0, "torch_build": "cpu", **JOB}),
    _same("gpu_up", 1, UUID),
    Row("gpu_process_cpu_seconds_total", {**_PROCESS_0, "part": "process"}, 4, 0.1, counter=True),
)
_OOM = (*_PROCESS, Row("torch_memory_ooms_total", {**_PROCESS_0, **UUID}, 0.01, 0, counter=True))
_EXPORTER = {"instance": "node-1"}
_ADVICE = ("mend it", "no, mend it so")
INFO = _same("gpu_info", 1, {**UUID, "index": "3", "name": "NVIDIA H100"})


def _fault(alert: str, *, lasting: bool = False, **words: str) -> Story:
    """Return the story of a fault that the exporter judges, with some of its words. Others of them change."""
    fault, own = FAULTS[alert], {**UUID, "problem": alert, **words}
    rows = INFO, *(Row("gpu_problem_info", {**own, "summary": fault.summary, "advice": a}, 1, None) for a in _ADVICE)
    action = {"action": fault.action} if fault.action else {}
    return Story(alert, {**GPU, **words, **action}, rows, fault.severity, lasting)


def _xid(xid: int) -> Story:
    code, kind, name = xid_labels(xid)
    return _fault(f"GpuXid{kind.capitalize()}", xid=code, xid_name=name)


STORIES = (
    Story("TrainingLoadLow", JOB, _lost("data_loading", 0.7)),
    Story("TrainingLoadVeryLow", JOB, _lost("data_loading", 0.7), "critical", parameters=TWO_LEVELS),
    *(
        Story(alert_of_cause(cause), JOB, _lost(cause, 0.7), severity_of_cause(CAUSES[cause]), parameters=PER_CAUSE)
        for cause in (
            *("data_loading", "host_bound", "transfer", "underfilled", "precision_unused", "waiting_for_peers"),
            *("throttled", "memory_pressure", "contention", "cpu_limited", "memory_swap_io", "unused_gpus"),
            *("waiting_elsewhere", "offloaded", "slow_network"),
        )
    ),
    Story("GpuHeldIdle", JOB, (*_PROCESS, *_state("held_idle"))),
    Story("TrainingOnCpu", JOB, _ON_CPU),
    Story("TorchCpuBuildBusy", JOB, _CPU_BUILD, "info"),
    Story("TrainingStalled", JOB, _stalled(0.0)),
    Story("TrainingRankBehind", JOB, _behind()),
    Story("TrainingRankBehind", JOB, ranks(2.0)),
    Story("TrainingOutOfMemory", JOB, _OOM, lasting=False),
    Story("AllocatedGpuUnused", ALLOCATED, _unused(), "info"),
    *(
        _fault(name, lasting=True)
        for name in ("GpuLost", "GpuThrottled", "GpuPcieDegraded", "GpuHot", "GpuReadingFailed")
    ),
    *(_fault(name) for name in ("GpuRowRemapFailed", "GpuUncorrectedEcc", "GpuNvlinkErrors")),
    *(
        _fault(name, reason=of)
        for name, of in (("GpuNeedsReset", "node_reboot"), ("GpuResetPending", "row_remap_pending"))
    ),
    *map(_xid, (31, 119, 48, 79, 142)),
    Story("ExporterOutdated", _EXPORTER, (_same("gpu_up", 1, UUID), Row("gpu_problems", UUID, None, 0))),
    Story("ExporterBlind", _EXPORTER, (Row("gpugauge_driver_up", {"reason": ""}, 0, 1),)),
    Story("DriverReleasedLong", _EXPORTER, (Row("gpugauge_driver_released", {}, 1, 0),)),
    Story("ExporterClockSkewed", _EXPORTER, (Row("gpugauge_snapshot_timestamp_seconds", {}, 3600, 0, clock=True),)),
    Story(
        "AttributionSourceDown",
        {**_EXPORTER, "source": "pods"},
        (
            Row("gpugauge_attribution_source_up", {"source": "pods"}, 0, 1),
            # Absent by choice: the environments of others.
            Row("gpugauge_attribution_source_up", {"source": "environ"}, 0, 0),
        ),
    ),
    Story(
        "ExporterCollectorFailing",
        {**_EXPORTER, "collector": "health"},
        (Row("gpugauge_collector_success", {"collector": "health"}, 0, 1),),
    ),
    Story("ExporterDown", _EXPORTER, (Row("up", {"job": "gpugauge"}, 0, 1),)),
)


@dataclass(frozen=True)
class Quiet:
    """A situation of healthy jobs, in which no alert may fire."""

    name: str
    rows: tuple[Row, ...]
    phases: list[tuple[str, int]] = field(default_factory=lambda: [("bad", 90)])


def _only(state: str, share: float = 0.0, start: float = -7200) -> tuple[Row, ...]:
    """Return a process in one state; `share` is the share of its GPU time that it uses."""
    return (
        *_PROCESS[:3],
        _same("training_start_timestamp_seconds", start, _PROCESS_0),
        _same("training_state", 1, {**_PROCESS_0, "state": state}),
        _same("training_seconds_total", 1, {**_PROCESS_0, "state": state}, counter=True),
        _same("training_gpu_held_seconds_total", 1, _PROCESS_0, counter=True),
        _same("training_lost_seconds_total", 1 - share, {**_PROCESS_0, "cause": "data_loading"}, counter=True),
    )


QUIET = (
    *(
        Quiet(state, _only(state))
        for state in ("starting", "compiling", "evaluating", "checkpointing", "generating", "not_training", "unknown")
    ),
    # The first quarter of an hour of a training is not judged.
    Quiet("a young training", _only("training", start=0), [("bad", 14)]),
    # Bad in its last minutes only.
    Quiet("the end of a job", _lost("data_loading", 0.9), [("good", 60), ("bad", 5), ("gone", 30)]),
    # For less than the half hour after which DriverReleasedLong fires.
    Quiet(
        "a released driver",
        (
            Row("gpugauge_driver_released", {}, 1, 0),
            Row("gpugauge_driver_up", {"reason": "released"}, 0, None),
            Row("gpugauge_driver_up", {"reason": "ok"}, None, 1),
        ),
        [("good", 20), ("bad", 28), ("good", 30)],
    ),
    Quiet("a training that uses its GPU", _lost("data_loading", 0.1)),
)
