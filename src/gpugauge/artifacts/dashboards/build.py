"""The dashboards for Grafana, in grafana/: `gpugauge dashboards --output grafana`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gpugauge.artifacts.dashboards import exporter as dashboards_exporter
from gpugauge.artifacts.dashboards import fleet as dashboards_fleet
from gpugauge.artifacts.dashboards import job as dashboards_job
from gpugauge.artifacts.dashboards import node as dashboards_node
from gpugauge.artifacts.dashboards.layout import Json

DASHBOARDS: dict[str, Callable[[], Json]] = {
    "fleet": dashboards_fleet.dashboard,
    "node": dashboards_node.dashboard,
    "job": dashboards_job.dashboard,
    "exporter": dashboards_exporter.dashboard,
}


_KUSTOMIZATION = """\
# Generated: `make generate`. The dashboards as ConfigMaps, in this folder because kustomize reads no files outside of
# its own. deploy/kubernetes/components/dashboards adds them to an overlay. One ConfigMap for each dashboard: kubectl
# apply keeps a copy of an object in an annotation, which is limited to 256 KiB.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
generatorOptions:
  disableNameSuffixHash: true # an update replaces the object, so that no old copy stays in Grafana
  labels:
    app.kubernetes.io/name: gpugauge
    grafana_dashboard: "1"
  annotations:
    grafana_folder: gpugauge
configMapGenerator:
"""


# The data source that a user chooses when importing a dashboard from grafana.com.
_INPUT = {
    "name": "DS_PROMETHEUS",
    "label": "Prometheus",
    "description": "A Prometheus that scrapes gpugauge and evaluates its rules.",
    "type": "datasource",
    "pluginId": "prometheus",
    "pluginName": "Prometheus",
}
_OLDEST_GRAFANA = "11.0.0"


def as_json(name: str, *, inputs: bool = False) -> str:
    """Return the JSON file of a dashboard; with `inputs`, in the form for grafana.com, whose import asks for the data
    source. Raises KeyError for an unknown name.
    """
    made = DASHBOARDS[name]()
    text = json.dumps(_with_inputs(made) if inputs else made, indent=2, ensure_ascii=False) + "\n"
    return (
        text.replace("&${datasource:queryparam}", "").replace("${datasource}", "${DS_PROMETHEUS}") if inputs else text
    )


def _with_inputs(dashboard: Json) -> Json:
    chosen = [each for each in dashboard["templating"]["list"] if each["type"] != "datasource"]
    used = {panel["type"] for row in dashboard["panels"] for panel in (row, *row.get("panels", ()))} - {"row"}
    requires = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _OLDEST_GRAFANA},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in sorted(used)),
    ]
    return {
        "__inputs": [_INPUT],
        "__elements": {},
        "__requires": requires,
        **dashboard,
        "templating": {"list": chosen},
    }


def as_kustomization() -> str:
    """Return the kustomization that generates a ConfigMap for each dashboard."""
    maps = "".join(f"  - name: gpugauge-dashboard-{name}\n    files: [{name}.json]\n" for name in DASHBOARDS)
    return _KUSTOMIZATION + maps


def write(folder: Path, *, inputs: bool = False) -> list[Path]:
    """Write all dashboards into the folder, which is created if missing, and return their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in DASHBOARDS:
        path = folder / f"{name}.json"
        path.write_text(as_json(name, inputs=inputs), encoding="utf-8")
        written.append(path)
    return written
