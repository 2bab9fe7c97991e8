"""Golden files. `GPUGAUGE_GOLDEN=write pytest tests/test_golden.py` writes them anew: read the difference then."""

import os
import re
from functools import partial
from pathlib import Path

import pytest

from gpugauge import catalog
from gpugauge.simulator.scenario.load import Scenario, load_scenario, parse_scenario
from tests.golden_metrics import metrics, rank

FOLDER = Path(__file__).parent / "golden"
# Scenarios that ship, at a second of their time.
SHIPPED = {
    "a100-mig": 30,
    "workstation": 10,
    "h200-gpm": 20,
    "b200": 10,
    "geforce": 10,
    "failing-card": 40,
    "card-lost-shift": 40,
    "counters-reset": 40,
    "garbage": 40,
    "driver-470": 10,
    "driver-r570": 30,
    "driver-r575": 30,
    "driver-r580": 30,
}


def compare(path: Path, made: str) -> None:
    if os.environ.get("GPUGAUGE_GOLDEN") == "write":
        path.write_text(made)
    assert path.read_text() == made


def own(name: str) -> Scenario:
    path = FOLDER / f"{name}.yaml"
    return parse_scenario(path.read_text(), str(path), name)


def test_node_in_both_formats(tmp_path: Path) -> None:
    sessions = (partial(rank, 0), partial(rank, 1), partial(rank, 2, ended_at=1_790_000_015.0))
    made = metrics(own("node"), tmp_path, 30, *sessions, insides=(4001,))

    for form, text in made.items():
        compare(FOLDER / f"node.{form}", text)


@pytest.mark.parametrize("name", ["h100-mig", "desktop"])
def test_own_scenario(name: str, tmp_path: Path) -> None:
    compare(FOLDER / f"{name}.text", metrics(own(name), tmp_path, 10)["text"])


def test_released_driver(tmp_path: Path) -> None:
    made = metrics(load_scenario("workstation"), tmp_path, 10, released=True)

    compare(FOLDER / "released.text", made["text"])


@pytest.mark.parametrize(("name", "second"), SHIPPED.items())
def test_shipped_scenario(name: str, second: int, tmp_path: Path) -> None:
    compare(FOLDER / f"{name}.text", metrics(load_scenario(name), tmp_path, second)["text"])


def test_every_row_of_the_catalogue_is_in_a_golden_file() -> None:
    golden = "".join(path.read_text() for path in FOLDER.glob("*.text"))
    named = set(re.findall(r"^# TYPE (\S+)", golden, re.MULTILINE))

    assert {row.name for row in catalog.metrics()} - named == set()


def test_no_row_of_a_golden_file_is_nan() -> None:
    for path in FOLDER.glob("*.text"):
        assert not re.findall(r"^[^#].* (?:NaN|[+-]Inf)$", path.read_text(), re.MULTILINE), path.name
