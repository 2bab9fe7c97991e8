from __future__ import annotations

from typing import Any

import pytest

from gpugauge.collectors.device.healthlog import HealthLog
from gpugauge.driver.api import Device, DeviceReading


def device(errors: int | None = 0, action: int | None = 0, *, up: bool = True) -> tuple[Device, ...]:
    ecc = None if errors is None else {"uncorrected_volatile": errors, "corrected_volatile": 9}
    reading = DeviceReading(index=3, ecc_errors=ecc, recovery_action=action)
    return (Device("GPU-a", up, "ok" if up else "hangs", reading, {}),)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(r.getMessage(), r.fields) for r in caplog.records]  # type: ignore[attr-defined]  # `extra`


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_new_errors_without_an_xid_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthLog(lambda _: {31: 1005.0})
    for now, errors in ((0.0, 5), (30.0, 5), (60.0, 7), (90.0, 7), (120.0, None), (150.0, 7)):
        health.record(device(errors), now, 1000.0 + now)

    same = {"index": 3, "uuid": "GPU-a", "reason": "ecc_uncorrected"}
    expected = {**same, "errors": 2, "seconds": 60.0}
    assert lines(caplog) == [("GPU has uncorrected ECC errors that no Xid reported", expected)]


def test_errors_that_an_xid_reported_have_its_line_only(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthLog(lambda _: {48: 1055.0})
    health.record(device(0), 0.0, 1000.0)
    health.record(device(1), 60.0, 1060.0)

    assert lines(caplog) == []


def test_reset_of_the_counter_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthLog(lambda _: {})
    health.record(device(5), 0.0, 1000.0)
    health.record(device(0), 60.0, 1060.0)

    assert lines(caplog) == []


def test_recovery_action_begins_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthLog(lambda _: {})
    for now, action in ((0.0, 0), (30.0, 1), (60.0, 1), (90.0, 2), (120.0, None), (150.0, 0), (180.0, 0)):
        health.record(device(action=action), now, 1000.0 + now)

    changes = [
        (fields.pop("reason"), fields.pop("previous"), fields.pop("seconds"), fields) for _, fields in lines(caplog)
    ]
    same = {"index": 3, "uuid": "GPU-a"}
    assert changes == [
        ("gpu_reset", "none", 30.0, same),
        ("node_reboot", "gpu_reset", 60.0, same),
        ("none", "node_reboot", 60.0, same),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "GPU needs a recovery action: gpu_reset",
        "GPU needs a recovery action: node_reboot",
        "GPU needs no recovery action any more",
    ]


def test_recovery_action_that_is_needed_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthLog(lambda _: {})
    health.record(device(action=99), 0.0, 1000.0)
    health.record(device(up=False), 30.0, 1030.0)

    assert [message for message, _ in lines(caplog)] == ["GPU needs a recovery action: 99"]
