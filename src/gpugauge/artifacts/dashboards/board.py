"""What all dashboards share: variables, links between them, and the alerts that fired as annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpugauge.artifacts.dashboards.panels import DATASOURCE, Json, Row, place
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, braced
from gpugauge.artifacts.rules.recording import JOB as IDENTITY

TAG = "gpugauge"
JOB_LABELS = tuple(IDENTITY.split(", "))
# What our alerts are called; a test compares it with the rules.
_OURS = "(AllocatedGpu|Driver|Exporter|Gpu|Torch|Training).*"
FLEET, NODE, JOB, EXPORTER = "gpugauge-fleet", "gpugauge-node", "gpugauge-job", "gpugauge-exporter"
# Dashboards of Grafana 11 look like this; newer ones bring them up to date themselves.
_SCHEMA_VERSION = 39


@dataclass(frozen=True)
class Variable:
    """A choice from what Prometheus has; `every` is what All stands for, nothing for the list of all values."""

    name: str
    label: str
    query: str
    regex: str = ""
    multi: bool = True
    all: bool = True
    every: str = ".*"

    def as_dict(self) -> Json:
        """Return the variable as Grafana reads it."""
        chosen = {"current": {"text": ["All"], "value": ["$__all"]}} if self.all and self.multi else {}
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": DATASOURCE,
            "query": {"query": self.query, "refId": self.name},
            "regex": self.regex,
            "refresh": 2,
            "sort": 1,
            "multi": self.multi,
            "includeAll": self.all,
            **({"allValue": self.every} if self.all and self.every else {}),
            **chosen,
        }


def exporters(name: str = "job") -> Variable:
    """Return the choice of the scrape job, which is neither a cluster's nor a training's."""
    return Variable(name, "Exporter job", "label_values(gpugauge_build_info, job)")


def alerts(**labels: str) -> Expr:
    """Return our alerts that fire, by labels of the alerts."""
    return Expr("ALERTS" + braced({"alertstate": "firing", "alertname": f"~{_OURS}", **labels}), COUNT)


def link(title: str, uid: str, **variables: str) -> Json:
    """Return a link from a line of a table to a dashboard; variables are set from the columns named."""
    chosen = "".join(f"&var-{name}=${{__data.fields.{column}:percentencode}}" for name, column in variables.items())
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}{chosen}"}


def board(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Variable],
    rows: Sequence[Row],
    annotation: Expr,
    since: str = "now-3h",
) -> Json:
    """Return a dashboard that can be imported or provisioned: its data source is a variable, its uid stays."""
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
        "time": {"from": since, "to": "now"},
        "templating": {"list": [source, *(variable.as_dict() for variable in variables), filters]},
        "annotations": {"list": [_alerts(annotation)]},
        "links": [_others()],
        "panels": place(rows),
    }


def _alerts(annotation: Expr) -> Json:
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


def _others() -> Json:
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
