"""Golden files. `GPUGAUGE_GOLDEN=write pytest tests/test_golden.py` writes them anew: read the difference then."""

import os
from pathlib import Path

import pytest

from gpugauge.driver.simulated.scenario import parse_scenario
from tests.golden_metrics import metrics, training

FOLDER = Path(__file__).parent / "golden"
SCENARIOS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_metrics_are_as_they_were(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.yaml"
    scenario = parse_scenario(path.read_text(), str(path), name)

    made = metrics(scenario, tmp_path, training(0), training(1), training(2, ended_at=1_790_000_055.0))

    for form, text in made.items():
        golden = FOLDER / f"{name}.{form}"
        if os.environ.get("GPUGAUGE_GOLDEN") == "write":
            golden.write_text(text)
        assert golden.read_text() == text
