"""Every generated file: its path, and the function that returns its text. `python -m tests.generated` writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import bench.verdict

from gpugauge.artifacts import reference as metrics_reference
from gpugauge.artifacts.dashboards import build as dashboards
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.settings import reference as settings_reference
from tests import golden_metrics
from tests.contract import packages_table

ROOT = Path(__file__).parents[1]


def section(path: str, name: str, table: Callable[[], str]) -> str:
    """Return the text of a document in which the part between the markers of `name` is replaced by the table."""
    text = (ROOT / path).read_text(encoding="utf-8")
    begin, end = bench.verdict.markers(name) if path == "docs/verdict.md" else markers(name)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{path} lacks the lines {begin} and {end}")
    return f"{before}{begin}\n\n{table()}\n\n{end}{after}"


def markers(name: str) -> tuple[str, str]:
    """Return the lines before and after a generated part of a document."""
    return f"<!-- {name}: make generate -->", f"<!-- end of {name} -->"


def golden(name: str, form: str) -> str:
    """Return the text of a golden file."""
    with tempfile.TemporaryDirectory() as folder:
        return golden_metrics.GOLDENS[name](Path(folder))[form]


def _files() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "docs/metrics.md", metrics_reference.as_markdown
    yield "docs/settings.md", settings_reference.reference
    yield "docs/architecture.md", partial(section, "docs/architecture.md", "packages", packages_table)
    yield "deploy/prometheus/rules/gpugauge.yaml", lambda: rules.FORMATS["prometheus"](Parameters())
    yield "deploy/prometheus/prometheusrule.yaml", lambda: rules.FORMATS["kubernetes"](Parameters())
    for name in dashboards.DASHBOARDS:
        yield f"grafana/{name}.json", partial(dashboards.as_json, name)
    yield "grafana/kustomization.yaml", dashboards.as_kustomization
    for name in golden_metrics.GOLDENS:
        for form in golden_metrics.forms(name):
            yield f"tests/golden/{name}.{form}", partial(golden, name, form)


FILES: dict[str, Callable[[], str]] = dict(_files())


def main() -> None:
    """Write what is stale, and print its path."""
    for path, made in FILES.items():
        text = made()
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text:
            (ROOT / path).write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
