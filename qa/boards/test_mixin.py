"""The mixin as jsonnet-bundler fetches it: its folder and those of its dependencies, by their names, and no links."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import _jsonnet

ROOT = Path(__file__).parents[2]
REMOTE = "https://github.com/gpugauge/gpugauge"
MIXIN = "deploy/mixin"


def test_all_that_it_imports_is_fetched(tmp_path: Path) -> None:
    dependencies = json.loads((ROOT / MIXIN / "jsonnetfile.json").read_text())["dependencies"]
    sources = [each["source"]["git"] for each in dependencies]
    for folder in (MIXIN, *(source["subdir"] for source in sources)):
        regular = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / "github.com/gpugauge/gpugauge" / folder, ignore=regular)
    program = f"(import 'github.com/gpugauge/gpugauge/{MIXIN}/mixin.libsonnet').grafanaDashboards"

    rendered = json.loads(_jsonnet.evaluate_snippet("own", program, jpathdir=[str(tmp_path)]))

    assert {source["remote"] for source in sources} == {REMOTE}
    assert rendered == {
        f"gpugauge-{path.stem}.json": json.loads(path.read_text()) for path in (ROOT / "grafana").glob("*.json")
    }
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]
