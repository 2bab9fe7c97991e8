"""The generator of the dashboards in grafana/: `make generate`."""

from __future__ import annotations

import json
from collections.abc import Callable

from grafana.build import cost, exporter, fleet, job, node
from grafana.build.layout import Json

DASHBOARDS: dict[str, Callable[[], Json]] = {
    "fleet": fleet.dashboard,
    "node": node.dashboard,
    "job": job.dashboard,
    "exporter": exporter.dashboard,
    "cost": cost.dashboard,
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
    tree = DASHBOARDS[name]()
    # A panel in a line: `kubectl apply` takes 256 KiB with all that it escapes.
    panels = ",\n".join(json.dumps(panel, ensure_ascii=False) for panel in tree["panels"])
    return (
        json.dumps({**tree, "panels": []}, indent=1, ensure_ascii=False).replace(
            '"panels": []', f'"panels": [\n{panels}\n]'
        )
        + "\n"
    )


def as_kustomization() -> str:
    """Return the kustomization that generates a ConfigMap for each dashboard."""
    maps = "".join(f"  - name: gpugauge-dashboard-{name}\n    files: [{name}.json]\n" for name in DASHBOARDS)
    return _KUSTOMIZATION + maps
