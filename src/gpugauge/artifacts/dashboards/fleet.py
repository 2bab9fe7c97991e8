"""The dashboard of the fleet: where GPU time is lost, to what, and by whom."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.board import FLEET, JOB, JOB_LABELS, NODE, Variable, alerts, board, exporters, link
from gpugauge.artifacts.dashboards.panels import BAD, LOAD, Json, Panel, Query, Row, bars, stat, timeseries
from gpugauge.artifacts.dashboards.queries import COUNT, SHARE, Expr, Scope, recorded
from gpugauge.artifacts.dashboards.tables import Column, table
from gpugauge.artifacts.dashboards.workloads import CAUSE_COLORS, GROUP, lost, programs, who
from gpugauge.artifacts.rules.recording import DEVICE_BUSY, DOMINANT, HELD, PROCESS_JOB, USER_LOST
from gpugauge.artifacts.rules.recording import LOAD as TRAINING_LOAD

_S = Scope({"job": "~$job"}, GROUP)
_UP = _S.read("gpu_up")
_BUSY = recorded(DEVICE_BUSY).then(f"{{}} and on (uuid) {_UP}")
_HELD = recorded(HELD, **GROUP)
_LOST = lost(**GROUP)
_WORKED = "over the last 15 minutes"
_TO_JOB = link("Open the job", JOB, kind="Kind", workload="Job")


def _named(expr: Expr, label: str) -> Expr:
    """Return the 15 largest, with words for an empty label."""
    return expr.then(f'topk(15, label_replace({{}}, "{label}", "(none)", "{label}", ""))')


def dashboard() -> Json:
    """Return the dashboard."""
    variables = [
        exporters(),
        Variable("kind", "Kind", f"label_values({PROCESS_JOB}, workload_kind)"),
        Variable(
            "namespace", "Namespace", f'label_values({PROCESS_JOB}{{workload_kind=~"$kind"}}, workload_namespace)'
        ),
    ]
    return board(
        FLEET,
        "gpugauge / Fleet",
        "Where GPU time is lost, to what, and by whom. Jobs are judged by the recording rules of `gpugauge rules`.",
        variables,
        [
            Row("Now", _now()),
            Row("Where GPU time goes", _where()),
            Row("Who", _jobs()),
            Row("What to look at", _look()),
        ],
        alerts(),
        since="now-24h",
    )


def _now() -> list[Panel]:
    load = Expr(f"1 - sum ({_LOST}) / sum ({_HELD})", SHARE)
    given = _S.select("gpu_allocation_info")
    unused = Expr(f"count (max by (uuid) ({given}) and on (uuid) {recorded(DEVICE_BUSY)} < 0.01)", COUNT)
    return [
        stat("GPUs", "GPUs that answer. A GPU that is lost is on the dashboard of its node.", Query(_UP.by())),
        stat(
            "GPUs busy",
            f"Mean share of time, {_WORKED}, in which something ran on a GPU. Busy is not yet useful: see the load.",
            Query(_BUSY.by(operator="avg")),
        ),
        stat(
            "Training load",
            f"Share of the GPU time held by trainings that was not lost, {_WORKED}. Below: what it was lost to.",
            Query(load),
            steps=LOAD,
        ),
        stat(
            "GPUs lost",
            f"GPUs' worth of time that trainings held and lost, {_WORKED}. So many GPUs would be free with perfect "
            "jobs.",
            Query(_LOST.by()),
        ),
        stat(
            "Given and unused",
            f"GPUs that a scheduler gave to a job and on which nothing ran, {_WORKED}. They are listed below.",
            Query(unused),
            steps=BAD,
        ),
        stat(
            "Alerts firing",
            "Alerts of gpugauge that fire now, listed below.",
            Query(alerts().by(operator="count")),
            steps=BAD,
        ),
    ]


def _where() -> list[Panel]:
    # Five minutes between two looks, twelve of them in an hour: whatever the interval of the rules.
    hours = _LOST.by("cause").then("sum_over_time(({})[$__range:5m]) / 12 > 0")
    allocated = _S.read("gpu_allocation_state", state="~allocated|shared")
    return [
        timeseries(
            "GPUs lost, by cause",
            "GPUs' worth of time lost by the trainings chosen, by cause. The largest area is the cause worth "
            "working on; "
            "docs/verdict.md tells the evidence for each, and `unknown` shrinks when trainings run under the hook.",
            Query(_LOST.by("cause").then("{} > 0"), "{{cause}}"),
            width=16,
            height=10,
            stack=True,
            colors=CAUSE_COLORS,
        ),
        bars(
            "GPU hours lost in the time shown, by cause",
            "The same added up: multiply by the price of a GPU hour. In steps of 5 minutes.",
            Query(hours.then("sort_desc({})"), "{{cause}}"),
            height=10,
        ),
        timeseries(
            "GPUs",
            "GPUs there, given to jobs by a scheduler, held by trainings, and the worth of GPUs that is busy. The "
            "gap between "
            "given and busy is what the fleet pays for and does not use.",
            Query(_UP.by(), "there"),
            Query(allocated.by(), "given to jobs"),
            Query(_HELD.by(), "held by trainings"),
            Query(_BUSY.by().measured(COUNT), "busy"),
            width=16,
        ),
        bars(
            "GPUs lost, by namespace",
            f"GPUs' worth of time that the trainings of a namespace lost, {_WORKED}; without a name: outside of "
            "Kubernetes.",
            Query(_named(_LOST.by("workload_namespace"), "workload_namespace"), "{{workload_namespace}}"),
        ),
    ]


def _jobs() -> list[Panel]:
    def job(expr: Expr, *labels: str) -> Expr:
        return who(expr.by(*JOB_LABELS, *labels))

    dominant = recorded(DOMINANT, **GROUP)
    return [
        table(
            "Jobs",
            f"Trainings with what they hold and lose, {_WORKED}, the worst first. A line leads to the job, where "
            "its cause and the "
            "advice stand. Program and owner are those of most of its processes.",
            Column("Job", "who", link=_TO_JOB, size=250),
            Column("Kind", "workload_kind", size=90),
            Column("Namespace", "workload_namespace"),
            Column("Owner", "owner", size=110),
            Column("Pod", "workload_pod"),
            Column("Program", "workload_command"),
            Column("Main cause", "cause"),
            Column("Its share", job(dominant, "cause"), bar=True),
            Column("Load", job(recorded(TRAINING_LOAD, **GROUP)), steps=LOAD, size=80),
            Column("GPUs lost", job(_LOST), size=100),
            Column("GPUs held", job(_HELD), size=100),
            Column("Processes", who(programs(_S)), size=100),
            Column("Job id", "workload_job_id", hidden=True),
            Column("User", "workload_user", hidden=True),
            sort="GPUs lost",
            width=24,
            height=10,
        ),
        timeseries(
            "GPUs lost, the ten worst jobs",
            f"GPUs' worth of time lost, {_WORKED}; at each moment the ten jobs that lose most.",
            Query(
                who(_LOST.by(*JOB_LABELS)).then("topk(10, {})"),
                "{{workload_kind}} {{workload_namespace}} {{who}}",
            ),
            width=16,
        ),
        bars(
            "GPUs lost, by user",
            f"GPUs' worth of time that the trainings of a user lost, {_WORKED}. Numbers are user ids that the "
            "exporter has no name for.",
            Query(_named(recorded(USER_LOST, **GROUP).by("workload_user"), "workload_user"), "{{workload_user}}"),
        ),
    ]


def _look() -> list[Panel]:
    labels = ("uuid", "workload_kind", "workload_namespace", "workload_pod", "workload_job_id", "workload_user")
    given = Expr(_S.select("gpu_allocation_info"), COUNT).by(*labels, operator="max")
    names = f"topk by (uuid) (1, max by (uuid, instance, index, name) ({_S.select('gpu_info')}))"
    unused = given.then(
        f"{{}}\n* on (uuid) group_left (instance, index, name) {names}\n"
        f"* on (uuid) group_left () ({recorded(DEVICE_BUSY)} < 0.01)",
        SHARE,
    )
    fires = ("alertname", "severity", "instance", "uuid", *JOB_LABELS)
    return [
        table(
            "Given to a job and unused",
            f"GPUs that a scheduler gave to a job and on which nothing ran, {_WORKED}. Ask their owner, or see on "
            "the node what holds "
            "them. Absent where no scheduler tells (docs/attribution.md).",
            Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
            Column("GPU", "index", size=60),
            Column("Model", "name", size=200),
            Column("Kind", "workload_kind", size=90),
            Column("Namespace", "workload_namespace"),
            Column("Pod", "workload_pod"),
            Column("Job id", "workload_job_id"),
            Column("User", "workload_user", size=90),
            Column("Busy", unused, size=70),
            Column("uuid", "uuid"),
            width=12,
        ),
        table(
            "Alerts firing",
            "Alerts of gpugauge; each has a section in docs/runbook.md that tells what to do.",
            Column("Alert", "alertname", size=260),
            Column("Severity", "severity", size=90),
            Column("Kind", "workload_kind", size=90),
            Column("Namespace", "workload_namespace"),
            Column("Job id", "workload_job_id"),
            Column("User", "workload_user", size=90),
            Column("GPU", "uuid"),
            Column("Node", "instance"),
            Column("firing", alerts().by(*fires, operator="max"), hidden=True),
            width=12,
        ),
    ]
