"""The files of the Helm chart that are made from other files: what deploy/kubernetes applies, rules and dashboards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gpugauge.artifacts.dashboards import build as dashboards
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters

ROOT = Path(__file__).parents[1]
CHART, KUBERNETES = ROOT / "deploy" / "helm" / "gpugauge", ROOT / "deploy" / "kubernetes"
# Those that the values can choose; rules and dashboards are files of their own.
COMPONENTS = (
    *("annotations", "critical", "device-plugin", "gpu-operator", "hostpid", "kmsg", "kubelet-pods"),
    *("networkpolicy", "podmonitor", "priority", "runtimeclass", "servicemonitor", "simulate", "state", "tls"),
)
# Thresholds that occur nowhere else in the rules, and their marks in the chart.
_THRESHOLD, _CRITICAL = 0.9137, 0.7241
_MARKS = {
    "0.9137": "@threshold@",
    "91.37%": "@threshold_percent@%",
    "0.7241": "@critical@",
    "72.41%": "@critical_percent@%",
}


def marked_rules(critical: float | None) -> str:
    """Return the rules with marks in the place of the thresholds, which are values of the chart."""
    text = rules.FORMATS["kubernetes"](Parameters(threshold=_THRESHOLD, critical=critical))
    for number, mark in _MARKS.items():
        text = text.replace(number, mark)
    return text


def files() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the path of each file, and the function that returns its text."""
    target = CHART.relative_to(ROOT) / "files"
    sources = [KUBERNETES / "base" / f"{name}.yaml" for name in ("daemonset", "service", "serviceaccount")]
    for name in COMPONENTS:
        sources += sorted((KUBERNETES / "components" / name).glob("*.yaml"))
    for source in sources:
        if source.name != "kustomization.yaml":
            yield str(target / source.relative_to(KUBERNETES)), partial(source.read_text, encoding="utf-8")
    yield str(target / "prometheusrule.yaml"), partial(marked_rules, None)
    yield str(target / "prometheusrule-critical.yaml"), partial(marked_rules, _CRITICAL)
    for name in dashboards.DASHBOARDS:
        yield str(target / "dashboards" / f"{name}.json"), partial(dashboards.as_json, name)
