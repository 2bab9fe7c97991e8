"""The dashboard of the fleet: the GPUs wasted, by job and cause, and the state of nodes and GPUs."""

from __future__ import annotations

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import PROCESS_JOB
from gpugauge.artifacts.rules.recording import DEVICES, DOMINANT, PROGRAMS
from gpugauge.artifacts.rules.recording import LOAD as TRAINING_LOAD
from grafana.build.common import (
    CLUSTER_CHOICE,
    FLEET,
    JOB,
    JOB_LABELS,
    NODE,
    TextBox,
    Variable,
    alerts,
    exporters,
    link,
    make_dashboard,
    with_cluster_choice,
)
from grafana.build.fleet_nodes import FLEET_SCOPE, faults, health, heat, missing_data, nodes
from grafana.build.fleet_use import hours, unused, unused_gpus, where
from grafana.build.layout import Json, Panel, Row
from grafana.build.missing import number, or_reason, raw_number, value
from grafana.build.notifications import SEVERITIES, notifications
from grafana.build.panels import BAD, LOAD, Query, bars, stat
from grafana.build.queries import CLUSTER, COUNT, SHARE, Expr, keys, recorded
from grafana.build.tables import Column, dropped, table
from grafana.build.workloads import (
    JOB_MATCHERS,
    WINDOW,
    held,
    wasted,
    wasted_by_cause,
)

_TO_JOB = link("Open the job", JOB, kind="Kind", namespace="Namespace", workload="Job")
_TO_NODE = link("Open the node", NODE, instance="Node")
_CHOICE = Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True)


def dashboard() -> Json:
    """Return the dashboard."""
    of_cluster = f'{CLUSTER}=~"${CLUSTER}"'
    kinds = f"label_values({PROCESS_JOB}{{{of_cluster}}}, workload_job_kind)"
    namespaces = f'label_values({PROCESS_JOB}{{{of_cluster},workload_job_kind=~"$kind"}}, workload_namespace)'
    return make_dashboard(
        FLEET,
        "gpugauge / Fleet",
        "Which GPUs are wasted, by whom, why and where. Jobs are judged by the recording rules of `gpugauge rules`.",
        [
            *exporters(),
            Variable("kind", "Kind", kinds),
            Variable("namespace", "Namespace", namespaces),
            TextBox("price", "Price of a GPU hour", "1"),
        ],
        [
            Row("", [*_now(), _jobs(), *_below()]),
            Row("Nodes", nodes()),
            Row("Health of the GPUs", health()),
            Row("Where GPU time goes", where(), collapsed=True),
            Row("GPU hours and cost", hours(), collapsed=True),
            Row("Memory, power and temperature", heat(), collapsed=True),
            Row("Given to a job and unused", [unused()], collapsed=True),
        ],
        alerts(severity="~critical|warning"),
        start="now-24h",
    )


def _now() -> list[Panel]:
    load = Expr(f"1 - sum ({wasted()}) / (sum ({held()}) > 0)", SHARE)
    faulty = faults().by(keys("instance", "uuid"), operator="count").by(operator="count")
    return [
        stat(
            "GPUs wasted",
            f"GPU time that trainings held and did not use, {WINDOW}, as a number of GPUs: with perfect jobs as many "
            "GPUs would be free. Processes without evidence of a training do not count, nor does a training in its "
            "first 15 minutes.",
            Query(number(wasted().by())),
            sparkline=True,
            decimals=1,
        ),
        stat(
            "Training load",
            f"Share of the GPU time held by trainings that was not wasted, {WINDOW}.",
            Query(value(load)),
            steps=LOAD,
            empty_text="no training",
        ),
        stat(
            "Given and unused",
            f"GPUs that a scheduler allocated to a job and on which no kernel ran, {WINDOW}. A row below lists them.",
            Query(number(unused_gpus().by(operator="count").with_unit(COUNT))),
            steps=BAD,
        ),
        stat(
            "GPUs with a fault",
            "GPUs with a fault that is an alert: they do not answer, need a reset or a replacement, had errors of "
            "memory or links, or are nearly too hot. The row on health lists them.",
            Query(raw_number(faulty, FLEET_SCOPE, "gpu_problems")),
            steps=BAD,
        ),
        stat(
            "Notifications",
            "Notifications about firing alerts, grouped and inhibited like those of "
            "deploy/prometheus/alertmanager.yaml. They are listed below.",
            Query(number(notifications().by(operator="count"))),
            steps=BAD,
        ),
        stat(
            "Missing data",
            "What this dashboard cannot see: exporters that are not scraped, drivers that do not answer, rules that "
            "are not loaded. It is listed below.",
            Query(missing_data().by(operator="count").then("{} or vector(0)", COUNT)),
            steps=BAD,
        ),
    ]


def _jobs() -> Panel:
    job = ", ".join(JOB_LABELS)
    place = f"max by ({job}, instance) ({recorded(PROGRAMS, **JOB_MATCHERS)} > bool -1)"
    devices = f"count by ({job}) ({recorded(DEVICES, **JOB_MATCHERS)})"
    programs = f"topk by ({job}) (1, sum by ({job}, workload_command) ({recorded(PROGRAMS, **JOB_MATCHERS)}))"

    def of_job(expr: Expr, *labels: str) -> Expr:
        return with_cluster_choice(expr.by(*JOB_LABELS, *labels, operator="max"))

    first = Expr(f"topk by ({job}) (1, {place})", COUNT)
    number_of_nodes = Expr(f"count by ({job}) ({place})", COUNT)
    return table(
        "What is wasted, by whom, why and where",
        f"A line for each training job, {WINDOW}, the largest waste first. Job opens its causes and advice, Node its "
        "first node; its dashboard lists all nodes and GPUs.",
        Column("Job", "workload_job", link=_TO_JOB, size=230),
        Column("Namespace", "workload_namespace", size=110),
        Column("Wasted", or_reason(of_job(wasted()), "workload_job"), size=80, decimals=1),
        Column("Held", of_job(held()), size=70, decimals=1),
        Column("Load", of_job(recorded(TRAINING_LOAD, **JOB_MATCHERS)), steps=LOAD, size=70),
        Column("Main cause", "cause", size=150),
        Column("Its share", of_job(recorded(DOMINANT, **JOB_MATCHERS), "cause"), bar=True, size=130),
        Column("Program", "workload_command", size=150),
        Column("Node", "instance", link=_TO_NODE, size=140),
        Column("Nodes", of_job(number_of_nodes), size=70),
        Column("GPUs", of_job(Expr(devices, COUNT)), size=70),
        Column("Cluster", CLUSTER),
        Column("Kind", "workload_job_kind", size=110),
        _CHOICE,
        Column("first node", of_job(first, "instance"), hidden=True),
        Column("processes", of_job(Expr(programs, COUNT), "workload_command"), hidden=True),
        sort="Wasted",
        height=8,
        empty_text="no training older than 15 minutes",
    )


def _below() -> list[Panel]:
    ranks = {str(rank): severity for severity, (rank, _) in SEVERITIES.items()}
    colors = {str(rank): color for rank, color in SEVERITIES.values()}
    fires = or_reason(with_cluster_choice(notifications()), "alertname")
    return [
        table(
            "Notifications about firing alerts",
            "A line for each notification: its most severe alert. Alert opens the runbook.",
            Column("Severity", fires, texts={**ranks, "0": "-"}, colors=colors, size=80),
            Column("Alert", "alertname", size=190, link={"title": "Open the runbook", "url": Parameters().runbook_url}),
            Column("Job", "workload_job", link=_TO_JOB),
            Column("Node", "instance", link=_TO_NODE),
            Column("GPU", "index", size=50),
            Column("Pod", "workload_pod"),
            Column("Namespace", "workload_namespace", hidden=True),
            Column("Kind", "workload_job_kind", hidden=True),
            _CHOICE,
            *dropped("uuid", CLUSTER),
            sort="Severity",
            width=11,
            height=7,
            empty_text="no alert fires",
        ),
        table(
            "What is missing, since when and why",
            "What the values on this dashboard do not include, since when, and why.",
            Column("Node", "instance", link=_TO_NODE, size=140),
            Column("What is missing", "gap"),
            Column("Last seen", missing_data(), size=160),
            _CHOICE,
            *dropped(CLUSTER),
            sort="Node",
            ascending=True,
            width=7,
            height=7,
            empty_text="nothing: all exporters are scraped, all drivers answer, the rules are loaded",
        ),
        bars(
            "Why: GPUs wasted, by cause",
            f"GPU time wasted, {WINDOW}, as a number of GPUs. The longest bar is the cause to work on first.",
            Query(or_reason(wasted_by_cause().by("cause").then("sort_desc({} > 0.05)"), "cause"), "{{cause}}"),
            width=6,
            height=7,
            empty_text="no training wastes GPU time",
        ),
    ]
