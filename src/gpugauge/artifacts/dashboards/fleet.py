"""The dashboard of the fleet: the GPU time lost, by cause, job and user."""

from __future__ import annotations

from gpugauge.artifacts.dashboards.common import (
    FLEET,
    JOB,
    JOB_LABELS,
    NODE,
    Variable,
    alerts,
    exporter_job,
    link,
    make_dashboard,
)
from gpugauge.artifacts.dashboards.panels import BAD, LOAD, Json, Panel, Query, Row, bars, stat, timeseries
from gpugauge.artifacts.dashboards.queries import COUNT, SHARE, Expr, Scope, keys, recorded
from gpugauge.artifacts.dashboards.tables import Column, table
from gpugauge.artifacts.dashboards.workloads import CAUSE_COLORS, JOB_MATCHERS, WINDOW, lost, programs, with_job_name
from gpugauge.artifacts.rules.promql import PROCESS_JOB
from gpugauge.artifacts.rules.recording import DEVICE_BUSY, DOMINANT, HELD, USER_LOST
from gpugauge.artifacts.rules.recording import LOAD as TRAINING_LOAD

_S = Scope({"job": "~$job"}, JOB_MATCHERS)
_UP = _S.read("gpu_up")
_BUSY = recorded(DEVICE_BUSY).then(f"{{}} and on ({keys('uuid')}) {_UP}")
_HELD = recorded(HELD, **JOB_MATCHERS)
_LOST = lost(**JOB_MATCHERS)
_TO_JOB = link("Open the job", JOB, kind="Kind", workload="Job")


def _named(expr: Expr, label: str) -> Expr:
    """Return the 15 largest series, with `(none)` for an empty label."""
    return expr.then(f'topk(15, label_replace({{}}, "{label}", "(none)", "{label}", ""))')


def dashboard() -> Json:
    """Return the dashboard."""
    variables = [
        exporter_job(),
        Variable("kind", "Kind", f"label_values({PROCESS_JOB}, workload_job_kind)"),
        Variable(
            "namespace", "Namespace", f'label_values({PROCESS_JOB}{{workload_job_kind=~"$kind"}}, workload_namespace)'
        ),
    ]
    return make_dashboard(
        FLEET,
        "gpugauge / Fleet",
        "Where GPU time is lost, to what, and by whom. Jobs are judged by the recording rules of `gpugauge rules`.",
        variables,
        [
            Row("Now", _now()),
            Row("Where GPU time goes", _where()),
            Row("Jobs and users", _jobs()),
            Row("To be checked", _to_check()),
        ],
        alerts(),
        start="now-24h",
    )


def _now() -> list[Panel]:
    load = Expr(f"1 - sum ({_LOST}) / sum ({_HELD})", SHARE)
    uuid = keys("uuid")
    given = _S.select("gpu_allocation_info")
    unused = Expr(f"count (max by ({uuid}) ({given}) and on ({uuid}) {recorded(DEVICE_BUSY)} < 0.01)", COUNT)
    return [
        stat("GPUs", "GPUs that answer. A GPU that is lost is on the dashboard of its node.", Query(_UP.by())),
        stat(
            "GPUs busy",
            f"Mean share of the time, {WINDOW}, in which a kernel ran on a GPU. A busy GPU may still lose time: see "
            "the load.",
            Query(_BUSY.by(operator="avg")),
        ),
        stat(
            "Training load",
            f"Share of the GPU time held by trainings that was not lost, {WINDOW}. The causes are below.",
            Query(load),
            steps=LOAD,
        ),
        stat(
            "GPUs lost",
            f"GPU time that trainings held and lost, {WINDOW}, as a number of GPUs: with perfect jobs as many GPUs "
            "would be free.",
            Query(_LOST.by()),
        ),
        stat(
            "Given and unused",
            f"GPUs that a scheduler allocated to a job and on which no kernel ran, {WINDOW}. They are listed below.",
            Query(unused),
            steps=BAD,
        ),
        stat(
            "Alerts firing",
            "Alerts of gpugauge that fire now. They are listed below.",
            Query(alerts().by(operator="count")),
            steps=BAD,
        ),
    ]


def _where() -> list[Panel]:
    # In steps of five minutes, twelve in an hour, independent of the interval of the rules.
    hours = _LOST.by("cause").then("sum_over_time(({})[$__range:5m]) / 12 > 0")
    allocated = _S.read("gpu_allocation_state", state="~allocated|shared")
    return [
        timeseries(
            "GPUs lost, by cause",
            "GPU time that the chosen trainings lost, as a number of GPUs, by cause. The largest area is the cause to "
            "work on first; docs/verdict.md lists the evidence of each. `unknown` shrinks when trainings run under "
            "the hook.",
            Query(_LOST.by("cause").then("{} > 0"), "{{cause}}"),
            width=16,
            height=10,
            stack=True,
            colors=CAUSE_COLORS,
        ),
        bars(
            "GPU hours lost in the time shown, by cause",
            "The sum over the time shown, in steps of 5 minutes. Multiply by the price of a GPU hour.",
            Query(hours.then("sort_desc({})"), "{{cause}}"),
            height=10,
        ),
        timeseries(
            "GPUs",
            "GPUs that answer, GPUs that a scheduler allocated to jobs, GPUs that trainings hold, and busy GPU time as "
            "a number of GPUs. The gap between allocated and busy is paid for and not used.",
            Query(_UP.by(), "available"),
            Query(allocated.by(), "allocated to jobs"),
            Query(_HELD.by(), "held by trainings"),
            Query(_BUSY.by().with_unit(COUNT), "busy"),
            width=16,
        ),
        bars(
            "GPUs lost, by namespace",
            f"GPU time that the trainings of a namespace lost, {WINDOW}, as a number of GPUs. `(none)`: outside of "
            "Kubernetes.",
            Query(_named(_LOST.by("workload_namespace"), "workload_namespace"), "{{workload_namespace}}"),
        ),
    ]


def _jobs() -> list[Panel]:
    def job(expr: Expr, *labels: str) -> Expr:
        return with_job_name(expr.by(*JOB_LABELS, *labels))

    dominant = recorded(DOMINANT, **JOB_MATCHERS)
    by_user = recorded(USER_LOST, **JOB_MATCHERS).by("workload_user")
    return [
        table(
            "Jobs",
            f"Trainings with the GPUs that they hold and lose, {WINDOW}, the largest loss first. The link of a line "
            "opens the job with its causes and advice. Program and owner are those of most of its processes.",
            Column("Job", "who", link=_TO_JOB, size=250),
            Column("Kind", "workload_job_kind", size=90),
            Column("Namespace", "workload_namespace"),
            Column("Owner", "owner", size=110),
            Column("Pod", "workload_pod"),
            Column("Program", "workload_command"),
            Column("Main cause", "cause"),
            Column("Its share", job(dominant, "cause"), bar=True),
            Column("Load", job(recorded(TRAINING_LOAD, **JOB_MATCHERS)), steps=LOAD, size=80),
            Column("GPUs lost", job(_LOST), size=100),
            Column("GPUs held", job(_HELD), size=100),
            Column("Processes", with_job_name(programs(_S)), size=100),
            Column("Job id", "workload_job", hidden=True),
            sort="GPUs lost",
            width=24,
            height=10,
        ),
        timeseries(
            "GPUs lost, the ten worst jobs",
            f"GPU time lost, {WINDOW}, as a number of GPUs; at each moment the ten jobs that lose most.",
            Query(
                with_job_name(_LOST.by(*JOB_LABELS)).then("topk(10, {})"),
                "{{workload_job_kind}} {{workload_namespace}} {{who}}",
            ),
            width=16,
        ),
        bars(
            "GPUs lost, by user",
            f"GPU time that the trainings of a user lost, {WINDOW}, as a number of GPUs. A number in place of a name "
            "is a user id that the exporter cannot resolve.",
            Query(_named(by_user, "workload_user"), "{{workload_user}}"),
        ),
    ]


def _to_check() -> list[Panel]:
    labels = ("uuid", "workload_job_kind", "workload_namespace", "workload_pod", "workload_job", "workload_user")
    uuid = keys("uuid")
    allocated = Expr(_S.select("gpu_allocation_info"), COUNT).by(keys(*labels), operator="max")
    names = f"topk by ({uuid}) (1, max by ({uuid}, instance, index, name) ({_S.select('gpu_info')}))"
    unused = allocated.then(
        f"{{}}\n* on ({uuid}) group_left (instance, index, name) {names}\n"
        f"* on ({uuid}) group_left () ({recorded(DEVICE_BUSY)} < 0.01)",
        SHARE,
    )
    fires = ("alertname", "severity", "instance", "uuid", *JOB_LABELS)
    return [
        table(
            "Given to a job and unused",
            f"GPUs that a scheduler allocated to a job and on which no kernel ran, {WINDOW}. Ask their owner, or see "
            "on the node which processes hold them. Empty where no scheduler reports allocations "
            "(docs/attribution.md).",
            Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
            Column("GPU", "index", size=60),
            Column("Model", "name", size=200),
            Column("Kind", "workload_job_kind", size=90),
            Column("Namespace", "workload_namespace"),
            Column("Pod", "workload_pod"),
            Column("Job id", "workload_job"),
            Column("User", "workload_user", size=90),
            Column("Busy", unused, size=70),
            Column("uuid", "uuid"),
            width=12,
        ),
        table(
            "Alerts firing",
            "Alerts of gpugauge. docs/runbook.md has a section for each.",
            Column("Alert", "alertname", size=260),
            Column("Severity", "severity", size=90),
            Column("Kind", "workload_job_kind", size=90),
            Column("Namespace", "workload_namespace"),
            Column("Job id", "workload_job"),
            Column("User", "workload_user", size=90),
            Column("GPU", "uuid"),
            Column("Node", "instance"),
            Column("firing", alerts().by(*fires, operator="max"), hidden=True),
            width=12,
        ),
    ]
