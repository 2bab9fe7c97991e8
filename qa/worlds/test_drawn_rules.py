"""The rules that drawn parameters make are those that are recorded, and each parameter is refused with its sentence."""

from __future__ import annotations

import pytest

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.pack import alerts
from qa.worlds.drawn_rules import _VALUES, RECORD


@pytest.mark.parametrize("seed", range(RECORD.seeds))
def test_the_rules_are_those_that_are_recorded(seed: int) -> None:
    RECORD.check(seed)


def test_each_parameter_is_drawn_and_each_alert_recorded() -> None:
    assert _VALUES.keys() == Parameters.model_fields.keys()
    named = {f"alert {alert.name}" for alert in alerts(Parameters(critical=0.2, per_cause=True))}
    assert named <= RECORD.columns().keys()
