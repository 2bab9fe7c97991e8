"""The rows of the fleet's dashboard about the use of GPU time: causes, GPU hours, cost, ended jobs, unused GPUs."""

from __future__ import annotations

from gpugauge.artifacts.rules.recording import DEVICE_BUSY, HELD, LOST_GPUS, USER_LOST
from grafana.build.common import CLUSTER_CHOICE, JOB, JOB_LABELS, NODE, link, with_cluster_choice
from grafana.build.fleet_nodes import FLEET_SCOPE as _S
from grafana.build.layout import Panel
from grafana.build.missing import NO_DATA, or_reason, reason
from grafana.build.panels import Query, bars, timeseries
from grafana.build.queries import CLUSTER, COUNT, SHARE, Expr, keys, recorded
from grafana.build.tables import Column, dropped, table
from grafana.build.workloads import (
    CAUSE_COLORS,
    JOB_MATCHERS,
    WINDOW,
    gpu_hours,
    held,
    wasted,
    wasted_by_cause,
)

_CHOICE = Column(CLUSTER_CHOICE, CLUSTER_CHOICE, hidden=True)
_HOURS = "suffix: h"
_EMPTY = "no training in the time shown"


def _named(expr: Expr, label: str) -> Expr:
    """Return the 15 largest series, with `(none)` for an empty label, or the reason for their absence."""
    return or_reason(expr.then(f'sort_desc(topk(15, label_replace({{}}, "{label}", "(none)", "{label}", "")))'), label)


def unused_gpus() -> Expr:
    """Return the busy share of the GPUs that are allocated to a job and on which no kernel runs, with their job."""
    labels = ("uuid", "workload_job_kind", "workload_namespace", "workload_pod", "workload_job", "workload_user")
    uuid = keys("uuid")
    allocated = Expr(_S.select("gpu_allocation_info"), COUNT).by(keys(*labels), operator="max")
    names = f"topk by ({uuid}) (1, max by ({uuid}, instance, index, name) ({_S.select('gpu_info')}))"
    return allocated.then(
        f"{{}}\n* on ({uuid}) group_left (instance, index, name) {names}\n"
        f"* on ({uuid}) group_left () ({recorded(DEVICE_BUSY)} < 0.01)",
        SHARE,
    )


def where() -> list[Panel]:
    """Return the GPUs over time: wasted by cause and job, allocated, held and busy."""
    allocated = _S.read("gpu_allocation_state", state="~allocated|shared")
    up = _S.read("gpu_up")
    busy = recorded(DEVICE_BUSY).then(f"{{}} and on ({keys('uuid')}) {up}")
    hours = gpu_hours(wasted_by_cause().by("cause")).then("sort_desc({} > 0)", _HOURS)
    return [
        timeseries(
            "GPUs wasted, by cause",
            "GPU time that the chosen trainings wasted, as a number of GPUs. docs/verdict.md lists the evidence of "
            "each cause. `unknown` shrinks when trainings run under the hook.",
            Query(wasted_by_cause().by("cause").then("{} > 0"), "{{cause}}"),
            Query(reason("cause"), "{{cause}}", now=True),
            width=16,
            height=9,
            stack=True,
            colors=CAUSE_COLORS,
            empty_text=_EMPTY,
        ),
        bars(
            "GPU hours wasted in the time shown, by cause",
            "The sum over the time shown, in steps of 5 minutes.",
            Query(or_reason(hours, "cause"), "{{cause}}"),
            height=9,
            empty_text=_EMPTY,
        ),
        timeseries(
            "GPUs",
            "GPUs that answer, GPUs that a scheduler allocated to jobs, GPUs that trainings hold, and busy GPU time as "
            "a number of GPUs. The gap between allocated and busy is paid for and not used.",
            Query(up.by(), "available"),
            Query(allocated.by(), "allocated to jobs"),
            Query(held().by(), "held by trainings"),
            Query(busy.by().with_unit(COUNT), "busy"),
            Query(reason("gap").with_unit(COUNT), "{{gap}}", now=True),
            empty_text=NO_DATA,
        ),
        timeseries(
            "GPUs wasted, the ten worst jobs",
            f"GPU time wasted, {WINDOW}, as a number of GPUs; at each moment the ten jobs that waste most.",
            Query(wasted().by(*JOB_LABELS).then("topk(10, {})"), "{{workload_namespace}} {{workload_job}}"),
            Query(reason("workload_job"), "{{workload_job}}", now=True),
            empty_text=_EMPTY,
        ),
    ]


def hours() -> list[Panel]:
    """Return GPU hours and their cost by namespace and user, and the jobs that ended."""
    job = ", ".join(JOB_LABELS)
    by_user = recorded(USER_LOST, **JOB_MATCHERS).by("workload_user")
    text = "The sum over the time shown, in steps of 5 minutes. "

    def of(expr: Expr, label: str, template: str = "{}", unit: str = _HOURS) -> Query:
        return Query(_named(gpu_hours(expr).then(template, unit), label), f"{{{{{label}}}}}")

    by_namespace = wasted().by("workload_namespace")
    ended = recorded(HELD, **JOB_MATCHERS).then(f"(last_over_time({{}}[$__range:5m]) unless on ({job}) {{}})")

    def of_ended(expr: Expr, unit: str) -> Expr:
        return with_cluster_choice(Expr(f"{expr.by(*JOB_LABELS)}\nand on ({job}) {ended}", unit))

    seen = recorded(HELD, **JOB_MATCHERS).then("max_over_time(timestamp({})[$__range:5m]) * 1000")
    return [
        bars(
            "GPU hours held, by namespace",
            text + "`(none)`: outside of Kubernetes.",
            of(held().by("workload_namespace"), "workload_namespace"),
            width=6,
            empty_text=_EMPTY,
        ),
        bars(
            "GPU hours wasted, by namespace",
            text + "`(none)`: outside of Kubernetes.",
            of(by_namespace, "workload_namespace"),
            width=6,
            empty_text=_EMPTY,
        ),
        bars(
            "GPU hours wasted, by user",
            text + "A number in place of a name is a user id that the exporter cannot resolve. Users share a job in "
            "proportion to their processes.",
            of(by_user, "workload_user"),
            width=6,
            empty_text=_EMPTY,
        ),
        bars(
            "Cost of the wasted GPU hours, by namespace",
            text + "Multiplied by the price of a GPU hour, a variable at the top of the dashboard, in its currency.",
            of(by_namespace, "workload_namespace", "$price * {}", COUNT),
            width=6,
            empty_text=_EMPTY,
        ),
        table(
            "GPU hours, by job",
            text + "Cost: of the wasted hours, with the price at the top of the dashboard.",
            Column("Job", "workload_job"),
            Column("Kind", "workload_job_kind", size=110),
            Column("Namespace", "workload_namespace"),
            Column("Held", _by_job(held(), _HOURS), size=90, decimals=1),
            Column("Wasted", or_reason(_by_job(wasted(), _HOURS), "workload_job"), size=90, decimals=1),
            Column("Cost", _by_job(wasted(), COUNT, "$price * {}"), size=90, decimals=2),
            Column("Cluster", CLUSTER),
            sort="Wasted",
            width=12,
            empty_text=_EMPTY,
        ),
        table(
            "Ended jobs",
            "Jobs that ended in the time shown: the GPU hours that they held and wasted in it, and when they were seen "
            "last. Job opens its dashboard.",
            Column(
                "Job",
                "workload_job",
                link=link("Open the job", JOB, kind="Kind", namespace="Namespace", workload="Job"),
            ),
            Column("Kind", "workload_job_kind", size=110),
            Column("Namespace", "workload_namespace"),
            Column(
                "Held", or_reason(of_ended(gpu_hours(recorded(HELD, **JOB_MATCHERS)), _HOURS), "workload_job"), size=90
            ),
            Column("Wasted", of_ended(gpu_hours(recorded(LOST_GPUS, **JOB_MATCHERS)), _HOURS), size=90),
            Column("Last seen", of_ended(seen, "dateTimeFromNow"), size=140),
            _CHOICE,
            *dropped(CLUSTER),
            sort="Last seen",
            width=12,
            empty_text="no job ended in the time shown",
        ),
    ]


def _by_job(expr: Expr, unit: str, template: str = "{}") -> Expr:
    return gpu_hours(expr.by(*JOB_LABELS)).then(template, unit)


def unused() -> Panel:
    """Return the list of GPUs that are allocated and unused."""
    return table(
        "Given to a job and unused",
        f"GPUs that a scheduler allocated to a job and on which no kernel ran, {WINDOW}. Ask their owner, or see on "
        "the node which processes hold them.",
        Column("Node", "instance", link=link("Open the node", NODE, instance="Node")),
        Column("GPU", "index", size=60),
        Column("Model", "name", size=200),
        Column("Kind", "workload_job_kind", size=90),
        Column("Namespace", "workload_namespace"),
        Column("Pod", "workload_pod"),
        Column("Job", "workload_job"),
        Column("User", "workload_user", size=90),
        Column("Busy", or_reason(with_cluster_choice(unused_gpus()), "workload_job"), size=70),
        Column("uuid", "uuid"),
        _CHOICE,
        *dropped(CLUSTER),
        empty_text="none, or no scheduler reports allocations (docs/attribution.md)",
    )
