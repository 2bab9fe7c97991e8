from pathlib import Path

import pytest

from gpugauge.artifacts.rules import health
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.faults.table import COOLING, FAULTS, GpuHealth, ailments


def found(**figures: object) -> list[tuple[str, str]]:
    return [(ailment.runbook, ailment.text) for ailment in ailments(GpuHealth(**figures))]  # type: ignore[arg-type]  # by the caller


def test_each_alert_about_a_gpu_is_a_row() -> None:
    alerts = {alert.name: alert for alert in health.alerts(Selectors())}

    assert alerts.keys() == FAULTS.keys()
    assert all((alerts[name].severity, alerts[name].action) == (f.severity, f.action) for name, f in FAULTS.items())
    assert all(0 < len(fault.word) <= 14 for fault in FAULTS.values())


@pytest.mark.parametrize(
    ("errors", "rate", "text"),
    [
        ({}, None, None),
        ({"crc_flit": 9e9}, 99.9, None),
        ({"replay": 9}, 0.0, None),
        ({"replay": 12}, 0.0, "NVLink errors since the driver was loaded: 12 replay"),
        ({}, 100.0, "its NVLinks correct 100 errors per second"),
        (
            {"replay": 2, "recovery_failed": 1, "crc_flit": 3},
            500.0,
            "NVLink errors since the driver was loaded: 2 replay, 1 recovery failed",
        ),
    ],
)
def test_errors_of_links(errors: dict[str, float], rate: float | None, text: str | None) -> None:
    assert found(nvlink_errors=errors, nvlink_corrected=rate) == ([("GpuNvlinkErrors", text)] if text else [])


def test_all_faults_of_a_gpu_are_told_the_gravest_first() -> None:
    over_time = {"lanes": (8, 16), "load": 0.2, "link_load": 0.2, "slowed": {"hw_slowdown": 0.2}}
    worst = GpuHealth("gpu_reset", True, True, 60, True, 1, {"recovery": 1}, 0.0, 95, 90, **over_time)  # type: ignore[arg-type]  # by the caller

    graves = [ailment.grave for ailment in ailments(worst)]

    assert graves == sorted(graves, reverse=True)
    alone = {name for name in FAULTS if name in {"GpuLost", "GpuReadingFailed"} or name.startswith("GpuXid")}
    assert {ailment.runbook for ailment in ailments(worst)} == FAULTS.keys() - alone


def test_heat_has_the_same_words_in_views_alerts_and_runbook() -> None:
    runbook = (Path(__file__).parents[2] / "docs/runbook.md").read_text(encoding="utf-8")
    section = {name: " ".join(runbook.partition(f"### {name}\n")[2].partition("\n### ")[0].split()) for name in FAULTS}
    (hot,) = ailments(GpuHealth(temperature=88, slowdown_temperature=90))
    (slow,) = ailments(GpuHealth(slowed={"hw_thermal_slowdown": 1.0}, load=1.0))

    assert "its slowdown temperature" in hot.text
    assert "its slowdown temperature" in FAULTS["GpuHot"].summary
    assert "its slowdown temperature" in section["GpuHot"]
    for fault in (hot, slow):
        assert [text for text in (fault.advice, section[fault.runbook]) if COOLING not in text] == []


def test_a_row_that_waits_is_harmless_only_without_errors_of_the_memory() -> None:
    (alone,) = ailments(GpuHealth(remapping_pending=True))
    _, beside = ailments(GpuHealth(remapping_pending=True, uncorrected=1))

    assert (alone.runbook, beside.runbook) == ("GpuResetPending", "GpuResetPending")
    assert alone.advice.startswith("programs on it are not affected")
    assert "affected" not in beside.advice
