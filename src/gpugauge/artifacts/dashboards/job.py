"""The dashboard of a job: its losses and their causes, its steps, memory and ranks. Only `judged` needs the rules."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.common import (
    CLUSTER_CHOICE,
    NODE,
    ORDER_OF_QUERY,
    Variable,
    exporters,
    link,
    make_dashboard,
    with_cluster_choice,
)
from gpugauge.artifacts.dashboards.common import JOB as UID
from gpugauge.artifacts.dashboards.layout import Json, Panel, Row
from gpugauge.artifacts.dashboards.missing import number
from gpugauge.artifacts.dashboards.panels import BAD, LOAD, Query, stat, timeseries
from gpugauge.artifacts.dashboards.queries import CLUSTER, COUNT, SHARE, Expr, Scope, keys, recorded
from gpugauge.artifacts.dashboards.ranks import every_rank, host, memory, ranks
from gpugauge.artifacts.dashboards.tables import Column, dropped, table
from gpugauge.artifacts.dashboards.workloads import (
    CAUSE_COLORS,
    JOB_MATCHERS,
    PHASE_COLORS,
    STATE_COLORS,
    WINDOW,
    alerts_of_job,
    by_process,
    job_held,
    job_wasted,
    wasted,
)
from gpugauge.artifacts.dashboards.workloads import JOB_NODES as _S
from gpugauge.artifacts.rules.recording import ARMED
from gpugauge.verdict.causes import CAUSES

_OUTSIDE = "needs the hook (docs/hook.md), or a value that these processes do not report"


def dashboard() -> Json:
    """Return the dashboard."""
    cluster, *_ = exporters()
    infos = '__name__=~"gpu_process_host_info|gpu_process_info|torch_process_info"'
    every = f'{{{infos},{CLUSTER}=~"${CLUSTER}"'
    kind = f'{every},workload_job_kind=~"$kind"'
    job = f'{kind},workload_namespace=~"$namespace",workload_job="$workload"'
    info = Scope(JOB_MATCHERS).select("gpu_process_host_info", workload_job="!")
    # The job that wastes most now is first: the dashboard opens on it. Ended jobs follow.
    worst = wasted().by("workload_job", operator="max")
    others = f"0 * count by (workload_job) (max_over_time({info}[$__range:5m]))"
    variables = [
        cluster,
        Variable("kind", "Kind", f'label_values({every},workload_job!=""}}, workload_job_kind)'),
        Variable("namespace", "Namespace", f'label_values({kind},workload_job!=""}}, workload_namespace)'),
        Variable(
            "workload",
            "Job",
            f"query_result(sort_desc({worst} or {others}))",
            '/workload_job="([^"]+)"/',
            multi=False,
            include_all=False,
            sort=ORDER_OF_QUERY,
        ),
        # All is the list of the job's nodes, so that no query touches the series of other nodes.
        Variable("instance", "Node", f"label_values({job}}}, instance)", all_value=""),
    ]
    return make_dashboard(
        UID,
        "gpugauge / Job",
        "One training job: whether it uses its GPUs, and if not, why. Most of the data comes from inside the process: "
        "run it under the hook (docs/hook.md).",
        variables,
        [
            Row("", [*_now(), *_where()]),
            Row("Nodes and GPUs", [_places()]),
            Row("Steps", _steps(), collapsed=True),
            Row("Ranks side by side", ranks(), collapsed=True),
            Row("Memory", memory(), collapsed=True),
            Row("GPUs and host", host(), collapsed=True),
        ],
        alerts_of_job(),
    )


def _shares() -> Expr:
    """Return the share of the GPU time that the job holds and wastes, by cause."""
    return Expr(f"{job_wasted()}\n/ on () group_left () ({job_held()} > 0)", SHARE)


def _now() -> list[Panel]:
    evidence = {cause.name: cause.evidence for cause in CAUSES.values()}
    advice = {cause.name: cause.advice for cause in CAUSES.values()}
    explained = _shares().then(
        'label_replace(label_replace({} >= 0.05, "evidence", "$1", "cause", "(.*)"), "advice", "$1", "cause", "(.*)")'
    )
    start = by_process(_S.read("training_start_timestamp_seconds")).by(operator="min")
    armed = recorded(ARMED, **JOB_MATCHERS, workload_job="$workload").by(operator="max")
    return [
        stat(
            "Load",
            f"Share of the held GPU time that was used, {WINDOW}.",
            Query(Expr(f"clamp_min(1 - sum ({job_wasted()}) / ({job_held()} > 0), 0)", SHARE)),
            width=3,
            steps=LOAD,
            empty_text="holds no GPU",
        ),
        stat(
            "Main cause",
            f"The cause that wasted most GPU time, {WINDOW}, and its share, from 10 % on.",
            Query(_shares().then("topk(1, {} >= 0.1)"), "{{cause}}"),
            width=5,
            names=True,
            empty_text="none above 10 %",
        ),
        stat(
            "GPUs wasted",
            f"GPU time wasted, {WINDOW}, as a number of GPUs.",
            Query(job_wasted().by()),
            width=3,
            empty_text="holds no GPU",
            decimals=1,
        ),
        stat(
            "GPUs held",
            f"GPUs that its processes hold, {WINDOW}.",
            Query(job_held()),
            width=2,
            empty_text="holds no GPU",
            decimals=1,
        ),
        stat(
            "Steps a second",
            "Steps of the optimizer, summed over all ranks.",
            Query(by_process(_S.rate("torch_steps_total")).by()),
            width=3,
            empty_text="needs the hook",
        ),
        stat(
            "Training since",
            "The first step, batch or watch() of its first process.",
            Query(start),
            width=3,
            empty_text="needs the hook",
        ),
        stat(
            "Judged",
            "Whether alerts about its load may fire: the job is old enough and spends most of its time in training "
            "steps.",
            Query(number(armed)),
            width=2,
            texts={"0": "not yet", "1": "yes"},
        ),
        stat(
            "Alerts",
            "Alerts about this job that fire.",
            Query(number(alerts_of_job().by(operator="count"))),
            width=3,
            steps=BAD,
        ),
        table(
            "What to do",
            f"The causes that wasted 5 % or more, {WINDOW}, the largest first. docs/verdict.md describes the evidence "
            "and its limits.",
            Column("Cause", "cause", size=140),
            Column("Share of GPU time", explained, bar=True, size=200),
            Column("Evidence", "evidence", texts=evidence, size=600),
            Column("What to do", "advice", texts=advice),
            sort="Share of GPU time",
            height=6,
            empty_text="nothing is worth naming, or the job holds no GPU now",
        ),
    ]


def _where() -> list[Panel]:
    states = by_process(_S.rate("training_seconds_total"), "state").by("state")
    return [
        timeseries(
            "GPU time wasted, by cause",
            f"Share of the held GPU time, {WINDOW}. The rest to 100 % was used.",
            Query(_shares().then("{} > 0"), "{{cause}}"),
            stack=True,
            colors=CAUSE_COLORS,
            highest=1,
            empty_text="no GPU time wasted in the time shown",
        ),
        timeseries(
            "States of its processes",
            "Number of processes by state, averaged. Evaluation, checkpoints and compilation waste nothing; "
            "`stalled` and `held_idle` do.",
            Query(states.then("{} > 0", COUNT), "{{state}}"),
            stack=True,
            colors=STATE_COLORS,
        ),
    ]


def _places() -> Panel:
    device = keys("instance", "uuid")
    nodes = Scope({"instance": "~$instance"})
    held = by_process(nodes.read("gpu_process_memory_used_bytes"), "instance", "uuid").by(device)
    count = by_process(nodes.read("gpu_process_memory_used_bytes"), "instance", "uuid").by(device, operator="count")
    part, whole = (nodes.rate(f"gpu_{what}_seconds_total", engine="gpu").by(device) for what in ("busy", "observed"))
    index = f"topk by ({device}) (1, max by ({device}, index) ({nodes.select('gpu_info')}))"
    joined = f"{held}\n* on ({device}) group_left (index) {index}"
    alone = f"{held}\nunless on ({device}) {index}"

    def of_gpu(expr: Expr) -> Expr:
        return with_cluster_choice(expr.then(f"{{}}\n* on ({device}) group_left (index) {index}"))

    return table(
        "Nodes and GPUs",
        "The GPUs and MIG devices on which its processes hold memory. Node opens the node.",
        Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
        Column("GPU", "index", size=60),
        Column("Memory of the job", with_cluster_choice(held.then(f"{joined}\nor ({alone})"))),
        Column("Processes of the job", of_gpu(count.with_unit(COUNT))),
        Column(
            "Busy",
            of_gpu(Expr(f"{part} / ({whole} > 0)\nand on ({device}) {held}", SHARE).then("({})")),
            bar=True,
            size=200,
        ),
        Column("uuid", "uuid"),
        Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True),
        *dropped(CLUSTER),
        sort="Node",
        ascending=True,
        height=7,
        empty_text="its processes hold no memory of a GPU",
    )


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
            empty_text=_OUTSIDE,
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
            empty_text=_OUTSIDE,
        ),
    ]
