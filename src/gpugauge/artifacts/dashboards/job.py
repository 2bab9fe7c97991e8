"""The dashboard of a job: what it loses and why, its steps, its memory, its ranks side by side."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.board import JOB as UID
from gpugauge.artifacts.dashboards.board import Variable, board
from gpugauge.artifacts.dashboards.panels import LOAD, Json, Panel, Query, Row, stat, timeseries
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, Scope, recorded
from gpugauge.artifacts.dashboards.ranks import every_rank, host, memory, ranks
from gpugauge.artifacts.dashboards.tables import Column, table
from gpugauge.artifacts.dashboards.workloads import (
    CAUSE_COLORS,
    GROUP,
    PHASE_COLORS,
    STATE_COLORS,
    alerts_of_job,
    by_process,
    lost_gpus,
    of_job,
    who,
)
from gpugauge.artifacts.dashboards.workloads import CHOSEN as _S
from gpugauge.artifacts.rules.recording import ARMED, DOMINANT, HELD, LOST, PROCESS_JOB
from gpugauge.artifacts.rules.recording import LOAD as TRAINING_LOAD
from gpugauge.verdict.causes import CAUSES

_MINUTES = "over the last 15 minutes"


def dashboard() -> Json:
    """Return the dashboard."""
    jobs = who(Expr(f"last_over_time({recorded(PROCESS_JOB, **GROUP)}[$__range])", COUNT))
    state = Scope().select("training_state", state="training")
    there = f"max by (process, instance) (last_over_time({state}[$__range]))"
    ours = of_job(PROCESS_JOB, "$__range").by("process", operator="max")
    variables = [
        Variable("kind", "Kind", f"label_values({PROCESS_JOB}, workload_kind)"),
        Variable(
            "namespace", "Namespace", f'label_values({PROCESS_JOB}{{workload_kind=~"$kind"}}, workload_namespace)'
        ),
        Variable(
            "workload", "Job", f"query_result(count by (who) ({jobs}))", '/who="([^"]+)"/', multi=False, all=False
        ),
        # All is the list of the job's nodes: then no query touches the series of others.
        Variable(
            "instance",
            "Node",
            f"query_result(count by (instance) ({there} * on (process) group_left () ({ours})))",
            '/instance="([^"]+)"/',
            every="",
        ),
    ]
    return board(
        UID,
        "gpugauge / Job",
        "One training job: is it using its GPUs, and if not, why. The process itself tells most of it: run it under "
        "the hook (docs/hook.md).",
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
    told = causes.then(
        'label_replace(label_replace({}, "evidence", "$1", "cause", "(.*)"), "advice", "$1", "cause", "(.*)")'
    )
    start = by_process(_S.read("training_start_timestamp_seconds")).by(operator="min")
    return [
        stat(
            "Load",
            f"Share of the GPU time held that was not lost, {_MINUTES}.",
            Query(of_job(TRAINING_LOAD).by(operator="max")),
            width=3,
            steps=LOAD,
        ),
        stat(
            "Main cause",
            f"The cause that cost most, {_MINUTES}, and its share; none below a tenth.",
            Query(of_job(DOMINANT).by("cause", operator="max"), "{{cause}}"),
            width=5,
            names=True,
        ),
        stat("GPUs lost", f"GPUs' worth of time lost, {_MINUTES}.", Query(lost_gpus(of_job(LOST)).by()), width=3),
        stat("GPUs held", f"GPUs that its processes hold, {_MINUTES}.", Query(of_job(HELD).by()), width=3),
        stat(
            "Steps a second",
            "Of all its ranks together, by the optimizer's steps.",
            Query(by_process(_S.rate("torch_steps_total")).by()),
            width=3,
        ),
        stat("Training since", "The first step, batch or watch() of its first process.", Query(start), width=4),
        stat(
            "Judged",
            "1 while alerts about its load may fire: it trains for long enough, mostly in training steps.",
            Query(of_job(ARMED).by(operator="max")),
            width=3,
            nothing="not yet",
        ),
        table(
            "What to do",
            f"The causes that cost 5 % or more, {_MINUTES}; the largest first. docs/verdict.md has the evidence and "
            "its limits.",
            Column("Cause", "cause", size=140),
            Column("Share of GPU time", told, bar=True, size=200),
            Column("What was seen", "evidence", texts=evidence, size=600),
            Column("What to do", "advice", texts=advice),
            sort="Share of GPU time",
            height=6,
            nothing="nothing is worth naming",
        ),
    ]


def _where() -> list[Panel]:
    states = by_process(_S.rate("training_seconds_total"), "state").by("state")
    return [
        timeseries(
            "GPU time lost, by cause",
            f"Share of the GPU time held, {_MINUTES}. What is missing to 100 % was used.",
            Query(of_job(LOST).by("cause", operator="max").then("{} > 0"), "{{cause}}"),
            stack=True,
            colors=CAUSE_COLORS,
            highest=1,
        ),
        timeseries(
            "What its processes do",
            "Processes by state, averaged. Evaluations, checkpoints and compiling are no loss; `stalled` and "
            "`held_idle` are.",
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
            "By rank. Ranks that wait for each other are equally fast: see their own work.",
            _S.rate("torch_steps_total"),
        ),
        timeseries(
            "Duration of a step",
            "From one optimizer step to the next, over all ranks. A high 99 % with a low median: something comes "
            "now and then, such as a checkpoint, "
            "a slow batch or another process.",
            *durations,
        ),
        every_rank(
            "Waiting for data while the GPU had nothing to do",
            "Share of the time. Above a tenth the loader limits the training: more workers, pinned memory, faster "
            "storage. Absent where it "
            "cannot be known.",
            _S.rate("torch_data_wait_exposed_seconds_total"),
            highest=1,
        ),
        every_rank(
            "Waiting for data at all",
            "Share of the time that the training thread waits for batches; it costs nothing while the GPU still has "
            "work.",
            _S.rate("torch_data_wait_seconds_total"),
            highest=1,
        ),
        timeseries(
            "What the training threads do",
            "Ranks by phase, averaged.",
            Query(
                by_process(_S.rate("torch_phase_seconds_total"), "phase").by("phase").then("{} > 0", COUNT),
                "{{phase}}",
            ),
            width=24,
            stack=True,
            colors=PHASE_COLORS,
        ),
    ]
