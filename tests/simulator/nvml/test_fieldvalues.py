from __future__ import annotations

import pynvml
import pytest

from gpugauge.driver.nvidia.fieldvalues import field_values
from gpugauge.simulator.device.world import Generation
from gpugauge.simulator.nvml.fieldvalues import FIELDS

NAMES = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_FI_DEV_")}


@pytest.mark.parametrize("version", ["470.256.02", "570.124.06", "575.57.08", "580.95.05"])
def test_simulator_has_an_answer_for_every_field_value_of_the_driver(version: str) -> None:
    generation = Generation(version)
    missing = {row.id for row in field_values(version) if generation.throttle_reason(row.id) is None} - FIELDS.keys()

    named = ", ".join(f"field id {number} ({NAMES.get(number, 'not in pynvml')})" for number in sorted(missing))
    assert not missing, f"simulator/nvml/fieldvalues.py has no answer for {named}"
