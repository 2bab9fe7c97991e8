"""Every generated file: its path, and the function that returns its text. `python -m tests.generated` writes them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import qa.bench.verdict
from pydantic import TypeAdapter
from qa.worlds import drawn_crowds, drawn_lives, drawn_machines, drawn_programs, drawn_rules

from gpugauge.artifacts import reference as metrics_reference
from gpugauge.artifacts.rules import mixin
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.report.model import Report
from gpugauge.settings.options import walk
from grafana import build
from tests import golden_metrics
from tests.contract import packages_table
from tests.doctor.sample import sample
from tests.settings import reference as settings_reference
from tests.status import reference as status_reference

ROOT = Path(__file__).parents[1]
RECORDS = tuple(each.RECORD for each in (drawn_crowds, drawn_lives, drawn_machines, drawn_programs, drawn_rules))
CHART_SCHEMA = "deploy/helm/gpugauge/values.schema.json"
# Documents with generated parts.
TABLES: dict[str, Mapping[str, Callable[[], str]]] = {
    "docs/architecture.md": {"packages": packages_table},
    "docs/doctor.md": {"sample": sample},
    "docs/http.md": {"status": status_reference.tables},
    **{f"docs/{path}": tables for path, tables in qa.bench.verdict.TABLES.items()},
}


def document(path: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return the text of a document with new tables between its lines `<!-- NAME: … -->` and `<!-- end of NAME -->`.
    Raises ValueError if it lacks these lines.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    for name, table in tables.items():
        begin = re.search(rf"<!-- {name}: .* -->", text)
        end = text.find(f"<!-- end of {name} -->")
        if not begin or end < begin.end():
            raise ValueError(f"{path} lacks the lines <!-- {name}: … --> and <!-- end of {name} -->")
        text = f"{text[: begin.end()]}\n\n{table()}\n\n{text[end:]}"
    return text


def chart_schema() -> str:
    """Return the schema of the chart's values, with the keys of the settings."""
    schema = json.loads((ROOT / CHART_SCHEMA).read_text(encoding="utf-8"))
    schema["properties"]["settings"]["propertyNames"] = {"enum": [setting.key for setting in walk()]}
    return json.dumps(schema, indent=2) + "\n"


def golden(name: str, form: str) -> str:
    """Return the text of a golden file."""
    with tempfile.TemporaryDirectory() as folder:
        return golden_metrics.GOLDENS[name](Path(folder))[form]


def _files() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "docs/metrics.md", metrics_reference.as_markdown
    yield "docs/settings.md", settings_reference.reference
    yield "docs/report.schema.json", lambda: json.dumps(TypeAdapter(Report).json_schema(), indent=1) + "\n"
    for path, tables in TABLES.items():
        yield path, partial(document, path, tables)
    yield "deploy/prometheus/rules/gpugauge.yaml", lambda: rules.FORMATS["prometheus"](Parameters())
    yield "deploy/prometheus/prometheusrule.yaml", lambda: rules.FORMATS["kubernetes"](Parameters())
    yield "deploy/mixin/rules.libsonnet", lambda: mixin.as_jsonnet(Parameters())
    yield CHART_SCHEMA, chart_schema
    for name in build.DASHBOARDS:
        yield f"grafana/{name}.json", partial(build.as_json, name)
    yield "grafana/kustomization.yaml", build.as_kustomization
    for name in golden_metrics.GOLDENS:
        for form in golden_metrics.forms(name):
            yield f"tests/golden/{name}.{form}", partial(golden, name, form)
    for record in RECORDS:
        yield str(record.file.relative_to(ROOT)), record.text


FILES: dict[str, Callable[[], str]] = dict(_files())


def main() -> None:
    """Write the files that are stale, and print their paths."""
    for path, made in FILES.items():
        text = made()
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
