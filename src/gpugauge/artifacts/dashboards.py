"""The dashboards for Grafana: the files of the package, which are those of grafana/ in a checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = ("fleet", "node", "job", "exporter", "cost")
_PACKAGE = Path(__file__).parents[1]
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


def read(name: str, *, inputs: bool = False) -> str:
    """Return the JSON file of a dashboard; with `inputs`, in the form for grafana.com. Raises OSError."""
    folder = _PACKAGE / "dashboards"
    if not folder.exists():  # a checkout
        folder = _PACKAGE.parents[1] / "grafana"
    text = (folder / f"{name}.json").read_text(encoding="utf-8")
    if not inputs:
        return text
    made = json.dumps(_with_inputs(json.loads(text)), indent=1, ensure_ascii=False) + "\n"
    return made.replace("&${datasource:queryparam}", "").replace("${datasource}", "${DS_PROMETHEUS}")


def _with_inputs(dashboard: dict[str, Any]) -> dict[str, Any]:
    chosen = [each for each in dashboard["templating"]["list"] if each["type"] != "datasource"]
    used = {panel["type"] for row in dashboard["panels"] for panel in (row, *row.get("panels", ()))} - {"row"}
    requires = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": _OLDEST_GRAFANA},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in sorted(used)),
    ]
    return {"__inputs": [_INPUT], "__elements": {}, "__requires": requires, **dashboard, "templating": {"list": chosen}}


def write(folder: Path, *, inputs: bool = False) -> list[Path]:
    """Write all dashboards into the folder, which is created if missing, and return their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in NAMES:
        path = folder / f"{name}.json"
        path.write_text(read(name, inputs=inputs), encoding="utf-8")
        written.append(path)
    return written
