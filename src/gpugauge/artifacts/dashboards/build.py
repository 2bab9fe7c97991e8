"""The dashboards for Grafana, grafana/: `gpugauge dashboards --output grafana`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gpugauge.artifacts.dashboards import exporter as dashboards_exporter
from gpugauge.artifacts.dashboards import fleet as dashboards_fleet
from gpugauge.artifacts.dashboards import job as dashboards_job
from gpugauge.artifacts.dashboards import node as dashboards_node
from gpugauge.artifacts.dashboards.panels import Json

DASHBOARDS: dict[str, Callable[[], Json]] = {
    "fleet": dashboards_fleet.dashboard,
    "node": dashboards_node.dashboard,
    "job": dashboards_job.dashboard,
    "exporter": dashboards_exporter.dashboard,
}


def as_json(name: str) -> str:
    """Return the file of a dashboard; raises KeyError for one that does not exist."""
    return json.dumps(DASHBOARDS[name](), indent=2, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write all dashboards into the folder, which is made if it is not there; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in DASHBOARDS:
        path = folder / f"{name}.json"
        path.write_text(as_json(name), encoding="utf-8")
        written.append(path)
    return written
