"""The parts that all dashboards share: variables, links, and alerts as annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpugauge.artifacts.dashboards.panels import DATASOURCE, Json, Row, place
from gpugauge.artifacts.dashboards.queries import COUNT, Expr, braced
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import JOB_LABELS as JOB_LABELS_OF_RULES

TAG = "gpugauge"
JOB_LABELS = (Parameters().cluster_label, *JOB_LABELS_OF_RULES)
# The names of the alerts of the rules; a test compares them.
_ALERT_NAMES = "(AllocatedGpu|Driver|Exporter|Gpu|Torch|Training).*"
FLEET, NODE, JOB, EXPORTER = "gpugauge-fleet", "gpugauge-node", "gpugauge-job", "gpugauge-exporter"
# That of Grafana 11; newer versions migrate a dashboard when they load it.
_SCHEMA_VERSION = 39


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

    def as_dict(self) -> Json:
        """Return the variable in Grafana's JSON form."""
        chosen = {"current": {"text": ["All"], "value": ["$__all"]}} if self.include_all and self.multi else {}
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
            "includeAll": self.include_all,
            **({"allValue": self.all_value} if self.include_all and self.all_value else {}),
            **chosen,
        }


def exporter_job() -> Variable:
    """Return the variable for the label `job` of the scrape, which is not the job of a training."""
    return Variable("job", "Exporter job", "label_values(gpugauge_build_info, job)")


def alerts(**labels: str) -> Expr:
    """Return the firing alerts of the rules, selected by labels of the alerts."""
    return Expr("ALERTS" + braced({"alertstate": "firing", "alertname": f"~{_ALERT_NAMES}", **labels}), COUNT)


def link(title: str, uid: str, **variables: str) -> Json:
    """Return a link from a line of a table to a dashboard; `variables` maps its variables to columns of the table."""
    chosen = "".join(f"&var-{name}=${{__data.fields.{column}:percentencode}}" for name, column in variables.items())
    return {"title": title, "url": f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}{chosen}"}


def make_dashboard(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Variable],
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
        "templating": {"list": [source, *(variable.as_dict() for variable in variables), filters]},
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
