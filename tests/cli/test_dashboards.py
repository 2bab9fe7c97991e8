"""`gpugauge dashboards` prints and writes the files of grafana/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from grafana.build import DASHBOARDS

from gpugauge.artifacts.dashboards import NAMES
from gpugauge.cli.main import main
from tests.grafana.dashboard_reading import SCHEMA, Json, panels

FOLDER = Path(__file__).parents[2] / "grafana"


def test_every_dashboard_is_in_the_package() -> None:
    assert set(NAMES) == DASHBOARDS.keys() == {path.stem for path in FOLDER.glob("*.json")}


def test_command_writes_all(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["dashboards", "--output", str(tmp_path / "new")])

    assert done.exit_code == 0
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == {
        path.name: path.read_text() for path in FOLDER.glob("*.json")
    }


def test_command_prints_one() -> None:
    assert CliRunner().invoke(main, ["dashboards", "node"]).output == (FOLDER / "node.json").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_form_with_inputs_asks_for_the_data_source(name: str) -> None:
    text = CliRunner().invoke(main, ["dashboards", "--inputs", name]).output
    made = json.loads(text)

    assert [(each["name"], each["pluginId"]) for each in made["__inputs"]] == [("DS_PROMETHEUS", "prometheus")]
    assert "${datasource" not in text
    assert {each["uid"] for each in _data_sources(made)} == {"${DS_PROMETHEUS}"}
    required = {each["id"] for each in made["__requires"] if each.keys() == {"type", "id", "name", "version"}}
    assert {each["type"] for each in panels(made)} | {"grafana", "prometheus"} == required
    bare = {key: value for key, value in made.items() if not key.startswith("__")}
    assert [error.message for error in SCHEMA.iter_errors(bare)] == []


def _data_sources(tree: Any) -> Iterator[Json]:
    if isinstance(tree, dict):
        yield from ([tree["datasource"]] if "datasource" in tree else [])
    for below in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _data_sources(below)


@pytest.mark.parametrize("arguments", [[], ["nod"], ["node", "--output", "x"]])
def test_command_names_its_arguments(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["dashboards", *arguments])

    assert done.exit_code == 2
    assert "fleet, node, job, exporter" in done.output


def test_command_names_the_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = CliRunner().invoke(main, ["dashboards", "--output", str(tmp_path / "file" / "below")])

    assert done.exit_code == 1
    assert str(tmp_path / "file") in done.output
