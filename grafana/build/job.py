"""The dashboard of a job: its losses and their causes, its steps, memory and ranks. Only `judged` needs the rules."""

from __future__ import annotations

from gpugauge.artifacts.rules.recording import ARMED
from gpugauge.verdict.causes import CAUSES
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.verdict.step import LIMITS
from grafana.build.common import (
    CLUSTER_CHOICE,
    NODE,
    ORDER_OF_QUERY,
    Variable,
    exporters,
    link,
    make_dashboard,
    with_cluster_choice,
)
from grafana.build.common import JOB as UID
from grafana.build.layout import Json, Panel, Row
from grafana.build.missing import number
from grafana.build.panels import BAD, LOAD, Query, stat, timeseries
from grafana.build.queries import CLUSTER, COUNT, SHARE, Expr, Scope, keys, recorded
from grafana.build.ranks import host, memory, ranks, steps
from grafana.build.tables import Column, dropped, table
from grafana.build.workloads import (
    CAUSE_COLORS,
    JOB_MATCHERS,
    RANGE,
    STATE_COLORS,
    WINDOW,
    alerts_of_job,
    by_process,
    job_held,
    job_wasted,
    wasted,
)
from grafana.build.workloads import JOB_NODES as _S

_TIMES = "suffix:\u00d7"
_NONE, _UNKNOWN = "none found", "not known: no process reports through the hook (docs/hook.md)"


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
            Row("Steps", steps(), collapsed=True),
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
        _what_to_do(_shares()),
        _known_mistakes(),
    ]


def _what_to_do(shares: Expr) -> Panel:
    """Return the table of causes. `shares` are the shares of the GPU time that they waste."""
    evidence = {cause.name: cause.evidence for cause in CAUSES.values()}
    advice = {cause.name: cause.advice for cause in CAUSES.values()}
    return table(
        "What to do",
        f"The causes that wasted 5 % or more, {WINDOW}, the largest first, and those with a known gain. Step rate "
        "without it: how many times as many steps a second are expected without this cause alone, with its bounds, and "
        "the limit that comes next; - without the hook, and where the evidence does not decide it (docs/verdict.md).",
        Column("Cause", "cause", size=140),
        Column("Share of GPU time", _explained(shares.then("{} >= 0.05")), bar=True, size=160),
        Column("Step rate without it", _explained(_with_next(_gain("", "min"))), size=150, decimals=1),
        Column("At least", _explained(_gain("_lower", "min")), size=80, decimals=1),
        Column("At most", _explained(_gain("_upper", "max")), size=80, decimals=1),
        Column("Next limit", "next", texts=LIMITS, size=190),
        Column("What to do", "advice", texts=advice, size=500),
        Column("Evidence", "evidence", texts=evidence),
        sort="Share of GPU time",
        height=6,
        empty_text="nothing is worth naming, or the job holds no GPU now",
    )


def _explained(expr: Expr) -> Expr:
    """Return the series with labels for the columns whose texts follow from the cause."""
    named = 'label_replace(label_replace({}, "evidence", "$1", "cause", "(.*)"), "advice", "$1", "cause", "(.*)")'
    return expr.then(named)


def _mean(part: str = "") -> Expr:
    return Expr(f"avg_over_time({_S.select(f'training_expected_speedup{part}_ratio')}[{RANGE}])", _TIMES)


def _gain(part: str, operator: str) -> Expr:
    """Return a bound of the gain of the job, by cause. Not known where it is not known of a process that the cause
    limits.
    """
    limited = _S.read("training_limited_by").then("({} == 1)")
    pair = keys("process", "cause")
    without = limited.then(f"({{}} unless on ({pair}) max by ({pair}) ({_mean()}))")
    unknown = by_process(without, "cause").by("cause", operator="count")
    # A job is as fast as its slowest process.
    gain = by_process(_mean(part), "cause").by("cause", operator=operator)
    return gain.then(f"({{}}\nunless on (cause) {unknown})")


def _with_next(gain: Expr) -> Expr:
    """Return the gain with a label for the limit that comes next most often."""
    counts = Expr(f"count_over_time({_S.select('training_expected_speedup_info')}[{RANGE}])", COUNT)
    most = by_process(counts, "cause", "next").by("cause", "next").then("topk by (cause) (1, {}) > bool 0")
    return gain.then(f"{{}}\n* on (cause) group_left (next) ({most})")


def _known_mistakes() -> Panel:
    """Return the table of the known mistakes that its processes make."""
    evidence = {mistake.name: mistake.evidence for mistake in MISTAKES}
    change = {mistake.name: mistake.change for mistake in MISTAKES}
    made = by_process(_S.read("training_mistake"), "mistake").by("mistake")
    named = (
        'label_replace(label_replace({} > 0, "evidence", "$1", "mistake", "(.*)"), "change", "$1", "mistake", "(.*)")'
    )
    none = f'label_replace(sum ({made}) == 0, "mistake", "{_NONE}", "", "")'
    unknown = f'label_replace(vector(0) unless on () sum ({made}), "mistake", "{_UNKNOWN}", "", "")'
    return table(
        "Known mistakes",
        "Settings and calls of the program that cost time in each step (docs/verdict.md), and the number of processes "
        "in which they are seen now. A mistake that the reported facts do not decide is not listed.",
        Column("Mistake", "mistake", size=170),
        Column("Processes", made.then(f"{named}\nor {none}\nor {unknown}"), size=100),
        Column("What to change", "change", texts=change, size=600),
        Column("Evidence", "evidence", texts=evidence),
        sort="Processes",
        height=5,
    )


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
