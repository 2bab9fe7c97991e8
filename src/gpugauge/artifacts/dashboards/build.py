"""The dashboards for Grafana, in grafana/: `gpugauge dashboards --output grafana`."""

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


def as_json(name: str) -> str:
    """Return the JSON file of a dashboard. Raises KeyError for an unknown name."""
    return json.dumps(DASHBOARDS[name](), indent=2, ensure_ascii=False) + "\n"


def as_kustomization() -> str:
    """Return the kustomization that generates a ConfigMap for each dashboard."""
    maps = "".join(f"  - name: gpugauge-dashboard-{name}\n    files: [{name}.json]\n" for name in DASHBOARDS)
    return _KUSTOMIZATION + maps


def write(folder: Path) -> list[Path]:
    """Write all dashboards into the folder, which is created if missing, and return their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in DASHBOARDS:
        path = folder / f"{name}.json"
        path.write_text(as_json(name), encoding="utf-8")
        written.append(path)
    return written
