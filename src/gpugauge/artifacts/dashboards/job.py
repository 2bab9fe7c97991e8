"""The dashboard of a job: its losses and their causes, its steps, memory and ranks."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.common import JOB as UID
from gpugauge.artifacts.dashboards.common import Variable, make_dashboard
from gpugauge.artifacts.dashboards.panels import LOAD, Json, Panel, Query, Row, stat, timeseries
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, Scope, keys, recorded
from gpugauge.artifacts.dashboards.ranks import every_rank, host, memory, ranks
from gpugauge.artifacts.dashboards.tables import Column, table
from gpugauge.artifacts.dashboards.workloads import (
    CAUSE_COLORS,
    JOB_MATCHERS,
    PHASE_COLORS,
    STATE_COLORS,
    WINDOW,
    alerts_of_job,
    by_process,
    lost_gpus,
    of_job,
    with_job_name,
)
from gpugauge.artifacts.dashboards.workloads import JOB_NODES as _S
from gpugauge.artifacts.rules.promql import PROCESS_JOB
from gpugauge.artifacts.rules.recording import ARMED, DOMINANT, HELD, LOST
from gpugauge.artifacts.rules.recording import LOAD as TRAINING_LOAD
from gpugauge.verdict.causes import CAUSES


def dashboard() -> Json:
    """Return the dashboard."""
    jobs = with_job_name(Expr(f"last_over_time({recorded(PROCESS_JOB, **JOB_MATCHERS)}[$__range])", COUNT))
    state = Scope().select("training_state", state="training")
    present = f"max by ({keys('process', 'instance')}) (last_over_time({state}[$__range]))"
    ours = of_job(PROCESS_JOB, "$__range").by(keys("process"), operator="max")
    variables = [
        Variable("kind", "Kind", f"label_values({PROCESS_JOB}, workload_job_kind)"),
        Variable(
            "namespace", "Namespace", f'label_values({PROCESS_JOB}{{workload_job_kind=~"$kind"}}, workload_namespace)'
        ),
        Variable(
            "workload",
            "Job",
            f"query_result(count by (who) ({jobs}))",
            '/who="([^"]+)"/',
            multi=False,
            include_all=False,
        ),
        # All is the list of the job's nodes, so that no query touches the series of other nodes.
        Variable(
            "instance",
            "Node",
            f"query_result(count by (instance) ({present} * on ({keys('process')}) group_left () ({ours})))",
            '/instance="([^"]+)"/',
            all_value="",
        ),
    ]
    return make_dashboard(
        UID,
        "gpugauge / Job",
        "One training job: whether it uses its GPUs, and if not, why. Most of the data comes from inside the process: "
        "run it under the hook (docs/hook.md).",
        variables,
        [
            Row("Now", _now()),
            Row("Where its GPU time goes", _where()),
            Row("Steps", _steps()),
            Row("Ranks side by side", ranks()),
            Row("Memory", memory()),
            Row("GPUs and host", host()),
        ],
        alerts_of_job(),
    )


def _now() -> list[Panel]:
    evidence = {cause.name: cause.evidence for cause in CAUSES.values()}
    advice = {cause.name: cause.advice for cause in CAUSES.values()}
    causes = of_job(LOST).then("{} >= 0.05").by("cause", operator="max")
    explained = causes.then(
        'label_replace(label_replace({}, "evidence", "$1", "cause", "(.*)"), "advice", "$1", "cause", "(.*)")'
    )
    start = by_process(_S.read("training_start_timestamp_seconds")).by(operator="min")
    return [
        stat(
            "Load",
            f"Share of the held GPU time that was not lost, {WINDOW}.",
            Query(of_job(TRAINING_LOAD).by(operator="max")),
            width=3,
            steps=LOAD,
        ),
        stat(
            "Main cause",
            f"The cause that cost most GPU time, {WINDOW}, and its share, from 10 % on.",
            Query(of_job(DOMINANT).by("cause", operator="max"), "{{cause}}"),
            width=5,
            names=True,
        ),
        stat(
            "GPUs lost", f"GPU time lost, {WINDOW}, as a number of GPUs.", Query(lost_gpus(of_job(LOST)).by()), width=3
        ),
        stat("GPUs held", f"GPUs that its processes hold, {WINDOW}.", Query(of_job(HELD).by()), width=3),
        stat(
            "Steps a second",
            "Steps of the optimizer, summed over all ranks.",
            Query(by_process(_S.rate("torch_steps_total")).by()),
            width=3,
        ),
        stat("Training since", "The first step, batch or watch() of its first process.", Query(start), width=4),
        stat(
            "Judged",
            "1 while alerts about its load may fire: the job is old enough and spends most of its time in training "
            "steps.",
            Query(of_job(ARMED).by(operator="max")),
            width=3,
            empty_text="not yet",
        ),
        table(
            "What to do",
            f"The causes that cost 5 % or more, {WINDOW}, the largest first. docs/verdict.md describes the evidence "
            "and its limits.",
            Column("Cause", "cause", size=140),
            Column("Share of GPU time", explained, bar=True, size=200),
            Column("Evidence", "evidence", texts=evidence, size=600),
            Column("What to do", "advice", texts=advice),
            sort="Share of GPU time",
            height=6,
            empty_text="nothing is worth naming",
        ),
    ]


def _where() -> list[Panel]:
    states = by_process(_S.rate("training_seconds_total"), "state").by("state")
    return [
        timeseries(
            "GPU time lost, by cause",
            f"Share of the held GPU time, {WINDOW}. The rest to 100 % was used.",
            Query(of_job(LOST).by("cause", operator="max").then("{} > 0"), "{{cause}}"),
            stack=True,
            colors=CAUSE_COLORS,
            highest=1,
        ),
        timeseries(
            "States of its processes",
            "Number of processes by state, averaged. Evaluation, checkpoints and compilation are not losses; "
            "`stalled` and `held_idle` are.",
            Query(states.then("{} > 0", COUNT), "{{state}}"),
            stack=True,
            colors=STATE_COLORS,
        ),
    ]


def _steps() -> list[Panel]:
    buckets = by_process(_S.rate("torch_step_duration_seconds_bucket"), "le").by("le")
    durations = [
        Query(Expr(f"histogram_quantile({q:g}, {buckets})", "s"), name)
        for q, name in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))
    ]
    return [
        every_rank(
            "Steps a second",
            "By rank. Ranks that wait for each other make steps at the same rate: compare their own work.",
            _S.rate("torch_steps_total"),
        ),
        timeseries(
            "Duration of a step",
            "From one optimizer step to the next, over all ranks. A high 99 % with a low median indicates occasional "
            "delays, such as a checkpoint, a slow batch or another process.",
            *durations,
        ),
        every_rank(
            "Waiting for data while the GPU was idle",
            "Share of the time. Above a tenth, the loader limits the training: use more workers, pinned memory or "
            "faster storage. Absent where it cannot be measured.",
            _S.rate("torch_data_wait_exposed_seconds_total"),
            highest=1,
        ),
        every_rank(
            "Waiting for data, in all",
            "Share of the time that the training thread waits for training batches. The wait costs nothing while the "
            "GPU still has work. Absent where the loader is not known to the hook.",
            _S.rate("torch_data_wait_seconds_total", phase="training"),
            highest=1,
        ),
        timeseries(
            "Phases of the training threads",
            "Number of ranks by phase, averaged.",
            Query(
                by_process(_S.rate("torch_phase_seconds_total"), "phase").by("phase").then("{} > 0", COUNT),
                "{{phase}}",
            ),
            width=24,
            stack=True,
            colors=PHASE_COLORS,
        ),
    ]
