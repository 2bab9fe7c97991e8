"""The rules for a monitoring mixin, in Jsonnet: `gpugauge rules --format jsonnet`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpugauge.artifacts.rules import pack
from gpugauge.artifacts.rules.alert import THIS_GRAFANA
from gpugauge.artifacts.rules.options import Parameters


class _Threshold(float):
    """A number that is written as the mark of a number, or as that of its percentage."""

    def __format__(self, form: str) -> str:
        return "@share@" if form.endswith("%") else "@threshold@"


# In the place of the values of `_config`. The texts of alerts double the % of matchers.
_MARKS: dict[str, object] = {
    "threshold": _Threshold(0.5),
    "matchers": "@selector%@",
    "up_matchers": "@up@",
    "cluster_label": "@cluster@",
    "runbook_url": "@runbook@",
    "dashboard_url": "@dashboard@",
    "severities": {},
}
# Its parts between @@ are filled in.
_PROGRAM = Path(__file__).with_suffix(".libsonnet")


def as_jsonnet(p: Parameters) -> str:
    """Return the rules as a mixin; the parameters are the defaults of its `_config`, and fixed where it has no key."""
    pack.alerts(p)
    config = {
        "threshold": p.threshold,
        "selector": p.target_matchers,
        "upSelector": p.up_matchers,
        "clusterLabel": p.cluster_label,
        "runbookUrl": p.runbook_url,
        "dashboardUrl": p.dashboard_url or (THIS_GRAFANA if p.engine == "grafana" else ""),
        "severities": dict(p.severities),
    }
    # Matchers of jobs stay as they are: only the rules that find the jobs have them.
    marks = _MARKS | {"matchers": ",".join(filter(None, ("@selector%@", p.job_matchers)))}
    template = pack.groups(p.model_copy(update=marks))["groups"]
    program = _PROGRAM.read_text(encoding="utf-8").replace("@@lowest@@", f"{p.critical or 0:.4g}")
    return program.replace("@@config@@", _json(config, 2)).replace("@@template@@", _json(template, 0))


def _json(value: Any, indent: int) -> str:
    """Return a value as JSON, which is Jsonnet, in lines after the first indented by some spaces."""
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + " " * indent)
