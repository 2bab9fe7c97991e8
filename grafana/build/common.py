"""The parts that all dashboards share: variables, links, and alerts as annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpugauge.artifacts.rules import reasons
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.pack import alerts as rules_of_alerts
from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES
from grafana.build import gpus, words
from grafana.build.jobs import JOB_LABELS, SHOWN, called
from grafana.build.layout import Json, Panel, Row, place
from grafana.build.panels import CLUSTER_CHOICE, DATASOURCE, Column, dropped, table
from grafana.build.queries import CLUSTER, COUNT, Expr, Scope, braced

TAG = "gpugauge"
# The names of the alerts of the rules; a test compares them.
_ALERT_NAMES = "(AllocatedGpu|Attribution|Driver|Exporter|Gpu|Torch|Training).*"
FLEET, NODE, JOB, EXPORTER, COST = (f"gpugauge-{name}" for name in ("fleet", "node", "job", "exporter", "cost"))
# That of Grafana 11; newer versions migrate a dashboard when they load it.
_SCHEMA_VERSION = 39


_ALL = "All"
# Grafana's numbers for the order of the values of a variable.
_NATURAL_ORDER, ORDER_OF_QUERY = 7, 0


@dataclass(frozen=True)
class Variable:
    """A variable whose values come from Prometheus.

    `all_value` is the value of All; if it is empty, All is the list of all values.
    """

    name: str
    label: str
    query: str
    regex: str = ""
    multi: bool = True
    include_all: bool = True
    all_value: str = ".*"
    sort: int = _NATURAL_ORDER
    hidden: bool = False

    def as_dict(self) -> Json:
        """Return the variable in Grafana's JSON form."""
        listed = ([_ALL], ["$__all"]) if self.multi else (_ALL, "$__all")
        chosen = {"current": dict(zip(("text", "value"), listed, strict=True))} if self.include_all else {}
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": DATASOURCE,
            "query": {"query": self.query, "refId": self.name},
            "regex": self.regex,
            "refresh": 2,
            "sort": self.sort,
            "multi": self.multi,
            "includeAll": self.include_all,
            **({"hide": 2} if self.hidden else {}),
            **({"allValue": self.all_value} if self.include_all and self.all_value else {}),
            **chosen,
        }


# What a user types as the price of a GPU hour, as a number: "1,5" is 1.5, "2.5 €" is 2.5. Without a number it is NaN.
_TYPED = 'label_replace(label_replace(vector(1), "typed", "$price", "", ""), "number", "NaN", "", "")'
_NUMBER = f'label_replace({_TYPED}, "number", "${{1}}.${{2}}0", "typed", "[^0-9]*([0-9]+)(?:[.,]([0-9]+))?.*")'
_ONE = {"text": "1", "value": "1"}
_PRICE: Json = {"type": "textbox", "name": "price", "label": "Price of a GPU hour", "query": "1"}
PRICE = (
    {**_PRICE, "current": _ONE, "options": [{"selected": True, **_ONE}]},
    Variable("cost", "Cost", f"query_result({_NUMBER})", '/number="([^"]+)"/', False, False, hidden=True),
)


def cost(hours: Expr) -> Expr:
    """Return the cost of GPU hours, nothing where the price is not known."""
    return hours.then("($cost * ({})) >= 0", COUNT)


def exporters() -> list[Variable]:
    """Return the variables for the cluster and for the label `job` of the scrape, which is not the job of a training.

    All exporter jobs are the list of those with exporters, so that `up` of other targets is left out.
    """
    return [
        # One or all: the names of many would make queries too long for VictoriaMetrics.
        Variable(CLUSTER, "Cluster", f"label_values(gpugauge_build_info, {CLUSTER})", multi=False),
        Variable(
            "job", "Exporter job", f'label_values(gpugauge_build_info{{{CLUSTER}=~"${CLUSTER}"}}, job)', all_value=""
        ),
    ]


def gone(scope: Scope, past: str = "") -> Variable:
    """Return the hidden variable of the nodes of which something is not seen now, or a GPU did not answer when it was
    seen last in the `past`: that of the others is not searched.
    """
    answers = (f"last_over_time({each}[{past}])" if past else each for each in map(scope.select, _ANSWERS))
    missing = " or ".join(f"{each} == 0" for each in (scope.scraped("up"), *answers))
    query = f"query_result(topk(100, group by (instance) ({missing})))"
    return Variable("gone", "Gone", query, '/instance="([^"]+)"/', all_value="", hidden=True)


# What is 1 of a node that is well.
_ANSWERS = ("gpu_up", "gpugauge_driver_up")


def node(**options: Any) -> Variable:
    """Return the variable for the node. Nodes that are down are those that Prometheus cannot scrape."""
    return Variable("instance", "Node", f'label_values(up{{{CLUSTER}=~"${CLUSTER}",job=~"$job"}}, instance)', **options)


def alerts(**labels: str) -> Expr:
    """Return the firing alerts of the rules, selected by labels of the alerts."""
    every = {CLUSTER: f"~${CLUSTER}", "alertstate": "firing", "alertname": f"~{_ALERT_NAMES}", **labels}
    return Expr("ALERTS" + braced(every), COUNT)


# A column whose value is the chapter of the runbook about the alert in the label of that name.
_RUNBOOK = Parameters().runbook_url
CHAPTER = "chapter"
_CHAPTERS = {
    alert.name: (alert.name.lower(), "") for alert in rules_of_alerts(Parameters(per_cause=True, critical=0.1))
}
CHAPTER_COLUMN = Column(CHAPTER, CHAPTER, hidden=True, names=_CHAPTERS)
TO_RUNBOOK: Json = {"title": "Open the runbook", "url": f"{_RUNBOOK}#${{__data.fields.{CHAPTER}}}"}


def with_chapter(expr: Expr, label: str) -> Expr:
    """Return the expression with the label CHAPTER, for TO_RUNBOOK; `label` has the name of the alert."""
    return expr.then(f'label_replace({{}}, "{CHAPTER}", "$1", "{label}", "(.*)")')


def with_cluster_choice(expr: Expr) -> Expr:
    """Return the expression with the label CLUSTER_CHOICE, for links."""
    named = f'label_replace({{}}, "{CLUSTER_CHOICE}", "$1", "{CLUSTER}", "(.*)")'
    return expr.then(f'label_replace({named}, "{CLUSTER_CHOICE}", "{_ALL}", "{CLUSTER}", "")')


def link(title: str, uid: str, **variables: str) -> Json:
    """Return a link from a line of a table to a dashboard; `variables` maps its variables to columns of the table."""
    chosen = "".join(
        f"&var-{name}=${{__data.fields.{column}:percentencode}}"
        for name, column in {CLUSTER: CLUSTER_CHOICE, **variables}.items()
    )
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}{chosen}"}


TO_NODE = link("Open the node", NODE, instance="Node")
TO_JOB = link("Open the job", JOB, kind="Kind", namespace="Namespace", workload="workload")


def not_seen(title: str, scope: Scope, **options: Any) -> Panel:
    """Return the table of what exporters do not see or do."""
    nothing = f'label_replace(vector(0) unless on () {scope.scraped("up")}, "state", "no exporter is scraped", "", "")'
    every = words.or_reason(with_cluster_choice(gpus.missing(scope)).then(f"{{}}\nor {nothing}"), "state")
    seen = gpus.last_seen(scope).then(f"{{}}\nand on ({gpus.NODE_KEY}) {gpus.missing(scope)}")
    return table(
        title,
        "What the values do not include because an exporter does not see or do it, the gravest first, and when its "
        "values were seen last.",
        # Its lines come first, in this order.
        Column("level", every.then("sort_desc({})"), hidden=True),
        Column("Node", "instance", link=TO_NODE, size=140),
        Column("What", "state", names={**gpus.NODE_NAMES, **words.REASON_NAMES}),
        Column("Seen last", seen, size=130, empty="never"),
        empty_text="nothing: all exporters are scraped, all drivers answer, the rules are loaded",
        **options,
    )


def job_columns(*, namespace: int = 0, **options: Any) -> list[Column]:
    """Return the columns of a job: what people call it, with a link to it, and its identity, which the link needs. Its
    `namespace` is shown in this width.
    """
    return [
        Column("Job", SHOWN, link=TO_JOB, **options),
        Column("Namespace", "workload_namespace", size=namespace, hidden=not namespace),
        Column("workload", "workload_job", hidden=True),
        Column("Kind", "workload_job_kind", hidden=True),
    ]


# What is not seen of a node: its rank among the faults of GPUs, and its alert. The last that matches is taken.
_OF_NODES = (("4", "", ".*"), ("1", "ExporterBlind", "blind.*|no new.*"), ("1", "ExporterDown", ".*(not|never) seen.*"))


def _not_seen(s: Scope) -> Expr:
    """Return what is not seen of nodes in the form of faults."""
    every = f"0 * group by ({gpus.NODE_KEY}) ({s.scraped('up')} or {s.select('gpugauge_build_info')})"
    when = f"({gpus.last_seen(s)} and on ({gpus.NODE_KEY}) {s.scraped('up')} == 0 or on ({gpus.NODE_KEY}) {every})"
    found = gpus.missing(s).then(
        f'0 * label_replace({{}}, "summary", "$1", "state", "(.*)") + on ({gpus.NODE_KEY}) group_left () {when}'
    )
    found = found.then(f'label_replace({{}}, "advice", "{gpus.NODE_ADVICE}", "", "")')
    for rank, alert, states in _OF_NODES:
        found = found.then(f'label_replace({{}}, "problem", "{alert}", "summary", "{states}")')
        found = found.then(f'label_replace({{}}, "{gpus.RANK}", "{rank}", "summary", "{states}")')
    # What to do says the rest.
    found = found.then('label_replace({}, "summary", "$1", "summary", "(.* seen .*): .*")')
    return with_chapter(with_cluster_choice(found), "problem")


def _owners(s: Scope) -> Expr:
    """Return the job and user of each GPU with a fault, and of each node that is not seen."""
    well = f"{gpus.known(s, 'gpu_up')} unless on ({gpus.GPU_KEY}) {gpus.known(s, 'gpu_problem', severity='!info')}"
    owners = gpus.owners(s, *JOB_LABELS_OF_RULES, "workload_user")
    return called(Expr(f"({owners} unless on ({gpus.GPU_KEY}) ({well}))", COUNT))


# Of a fault that is repaired with another one.
_SAME = "The repair is that of "


def faults(s: Scope, title: str, *, of_fleet: bool, **options: Any) -> Panel:
    """Return the table of nodes that are not seen, and of the faults of GPUs, in short; of a fleet with jobs."""
    told = gpus.ranked(with_chapter(with_cluster_choice(gpus.listed(s)), "problem"))
    told = told.then(f'label_join({reasons.short("{}")}, "{gpus.RANK}", "", "{gpus.HAD}", "{gpus.RANK}")')
    where, whose, every = list[Column](), list[Column](), f"{{}}\nor {_not_seen(s)}"
    if of_fleet:
        where = [Column("Node", "instance", link=TO_NODE, size=70)]
        whose = [Column("User", "workload_user", size=55), *job_columns(size=150)]
        told = told.then(f'label_replace({{}}, "summary", "$1", "summary", "({gpus.SHORT}): .*")')
    else:
        # The rest of it is in the plan.
        for label, kept in (("summary", f"({gpus.SHORT}).*@.*{_SAME}.*"), ("advice", f".*@.*({_SAME}.*), also .*")):
            told = told.then('label_join({}, "parts", "@", "summary", "advice")')
            told = told.then(f'label_replace({{}}, "{label}", "$1", "parts", "{kept}")')
    told = words.or_reason(told.then(every), "summary") if of_fleet else told.then(every)
    return table(
        title,
        "The gravest first: each fault of a GPU, as its exporter judges it, and at last those that GPUs of a node had "
        "when it was seen last. Of a node that is not seen: when it was seen last. Fault opens the chapter of the "
        "runbook.",
        *(where if of_fleet else dropped("instance")),
        Column("GPU", "index", size=42),
        Column(
            "Fault",
            "summary",
            link=TO_RUNBOOK,
            size=250 if of_fleet else 330,
            names={**gpus.NODE_NAMES, **gpus.GPU_NAMES, **words.REASON_NAMES},
        ),
        *whose,
        Column("Fault since", told, size=105, names=gpus.NO_TIME),
        Column("Do this", "advice"),
        CHAPTER_COLUMN,
        Column(gpus.RANK, gpus.RANK, hidden=True),
        *dropped("uuid", "problem", "state", "when", "command", "note", "parts", "of", gpus.HAD),
        *(dropped(_owners(s), "process") if of_fleet else ()),
        order=("GPU", *(each.title for each in where), gpus.RANK),
        **options,
    )


def make_dashboard(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Variable | Json],
    rows: Sequence[Row],
    annotation: Expr,
    start: str = "now-3h",
) -> Json:
    """Return a dashboard for import or provisioning: its data source is a variable, its uid is constant."""
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    filters = {"type": "adhoc", "name": "filters", "label": "Filters", "datasource": DATASOURCE}
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "timezone": "browser",
        "time": {"from": start, "to": "now"},
        "templating": {
            "list": [source, *(each.as_dict() if isinstance(each, Variable) else each for each in variables), filters]
        },
        "annotations": {"list": [_alert_annotation(annotation)]},
        "links": [_links_to_dashboards()],
        "panels": place(rows),
    }


def _alert_annotation(annotation: Expr) -> Json:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": annotation.text,
        "step": "1m",
        "titleFormat": "{{alertname}}",
        "textFormat": " ".join(f"{{{{{label}}}}}" for label in (*JOB_LABELS, "uuid", "instance")),
        "tagKeys": "severity",
    }


def _links_to_dashboards() -> Json:
    return {
        "type": "dashboards",
        "title": "gpugauge",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
