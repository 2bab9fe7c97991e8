from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpugauge.collectors.device.faults import Faults
from gpugauge.collectors.device.gpufaults import FaultFile
from gpugauge.driver.api import Device, DeviceReading

T = 1.7e9
UNLINKED, LINKED, OF_A_PROGRAM = 119, 48, 31


def device(
    counter: int | None, n: int, action: str | None = None, *, up: bool = True, reasons: int | None = None
) -> tuple[Device, ...]:
    """Return the GPU as the `n`th reading shows it."""
    nanoseconds = None if reasons is None else {"sw_power_cap": reasons, "low_utilization": 5}
    reading = DeviceReading(
        index=0, energy_millijoules=counter, recovery_action=action, clocks_event_nanoseconds=nanoseconds
    )
    return (Device("GPU-a", up, "ok" if up else "hangs", reading, {"normal": n, "slow": n}),)


def test_an_error_lasts_until_the_counter_restarts() -> None:
    faults = Faults()
    faults.observe(device(1000, 1), T)
    faults.record("GPU-a", UNLINKED, T + 1)
    faults.record("GPU-a", OF_A_PROGRAM, T + 1)
    open_after = []
    for n, counter in enumerate((1100, 1200, 7, 9), 2):
        faults.observe(device(counter, n), T + n)
        open_after.append(faults.of("GPU-a"))

    # One lower reading may be wrong.
    assert open_after == [{UNLINKED: T + 1}] * 3 + [{}]


def test_without_energy_the_seconds_of_throttling_are_the_counter() -> None:
    faults = Faults()
    for n, reasons in enumerate((900, 900, 3, 3)):
        faults.observe(device(None, n, reasons=reasons), T + n)
        if n == 0:
            faults.record("GPU-a", UNLINKED, T)

    assert faults.of("GPU-a") == {}


def test_one_wrong_reading_is_no_repair() -> None:
    faults = Faults()
    faults.record("GPU-a", UNLINKED, T)
    for n, counter in enumerate((1000, 0, 1001, 0, 1002)):
        faults.observe(device(counter, n), T + n)

    assert faults.of("GPU-a") == {UNLINKED: T}


def test_the_same_reading_twice_is_no_confirmation() -> None:
    faults = Faults()
    faults.record("GPU-a", UNLINKED, T)
    for n, counter in ((1, 1000), (2, 0), (2, 0), (3, 1001)):
        faults.observe(device(counter, n), T + n)

    assert faults.of("GPU-a") == {UNLINKED: T}


def test_an_error_after_the_reset_stays() -> None:
    faults = Faults()
    faults.observe(device(1000, 1), T)
    faults.record("GPU-a", UNLINKED, T + 1)
    faults.observe(device(5, 2), T + 2)
    faults.record("GPU-a", LINKED, T + 3)
    faults.observe(device(9, 3), T + 4)

    assert faults.of("GPU-a") == {LINKED: T + 3}


def test_a_lost_gpu_keeps_its_errors() -> None:
    faults = Faults()
    faults.record("GPU-a", 79, T)
    for n in range(5):
        faults.observe(device(0, n, "none", up=False), T + n)

    assert faults.of("GPU-a") == {79: T}


def test_the_end_of_the_recovery_action_closes_all_errors() -> None:
    faults = Faults()
    faults.record("GPU-a", UNLINKED, T)
    open_after = []
    for n, action in enumerate(("none", "gpu_reset", "gpu_reset", "none")):
        faults.observe(device(None, n, action), T + n)
        open_after.append(bool(faults.of("GPU-a")))

    assert open_after == [True, True, True, False]


def test_no_recovery_action_closes_the_errors_that_it_covers() -> None:
    """But not before a reading that began after the error."""
    faults = Faults()
    faults.observe(device(None, 1, "none"), T)
    faults.record("GPU-a", LINKED, T + 1)
    faults.record("GPU-a", UNLINKED, T + 1)
    open_after = []
    for n in (1, 2, 3):
        faults.observe(device(None, n, "none"), T + n)
        open_after.append(set(faults.of("GPU-a")))

    assert open_after == [{LINKED, UNLINKED}, {LINKED, UNLINKED}, {UNLINKED}]


def test_the_next_daemon_knows_the_errors_and_the_counter(tmp_path: Path) -> None:
    path = tmp_path / "xids.json"
    first = Faults(FaultFile(path, "boot"))
    first.observe(device(1000, 1), T)
    first.record("GPU-a", UNLINKED, T + 1)
    first.observe(device(1100, 2), T + 2)

    second = Faults(FaultFile(path, "boot"))
    assert second.of("GPU-a") == {UNLINKED: T + 1}
    for n, counter in ((1, 8), (2, 9)):
        second.observe(device(counter, n), T + 10 + n)
    assert second.of("GPU-a") == {}

    third = Faults(FaultFile(path, "boot"))
    # The kernel log still has the error that was repaired.
    third.record("GPU-a", UNLINKED, T + 1, live=False)
    assert third.of("GPU-a") == {}


def test_a_reboot_repairs(tmp_path: Path) -> None:
    path = tmp_path / "xids.json"
    first = Faults(FaultFile(path, "boot"))
    first.record("GPU-a", UNLINKED, T)
    first.observe(device(1, 1), T)

    assert Faults(FaultFile(path, "boot")).of("GPU-a") == {UNLINKED: T}
    assert Faults(FaultFile(path, "another")).of("GPU-a") == {}


def test_gpus_of_other_daemons_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "xids.json"
    here, there = Faults(FaultFile(path, "boot")), Faults(FaultFile(path, "boot"))
    for faults, uuid in ((here, "GPU-a"), (there, "GPU-b")):
        faults.record(uuid, UNLINKED, T)
        faults.observe((), T)

    assert json.loads(path.read_text())["gpus"].keys() == {"GPU-a", "GPU-b"}


def test_the_file_is_written_when_something_changes_and_hourly_while_errors_are_open(tmp_path: Path) -> None:
    path = tmp_path / "xids.json"
    faults = Faults(FaultFile(path, "boot"))
    faults.observe(device(1000, 1), T)
    assert not path.exists()
    faults.record("GPU-a", UNLINKED, T)
    written = []
    for n, at in enumerate((1, 2, 1800, 3700), 2):
        faults.observe(device(1000 * n, n), T + at)
        written.append(json.loads(path.read_text())["gpus"]["GPU-a"]["counters"]["energy"])

    assert written == [2000, 2000, 2000, 5000]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"gpugauge": 2, "boot": "boot", "gpus": {}}',
        b'{"gpugauge": 1, "boot": "boot", "gpus": {"GPU-a": {"xids": 3}}}',
        b'{"gpugauge": 1, "boot": "boot", "gpus": {"GPU-a": {"xids": {"x": 1}, "repaired": 0, "counters": {}}}}',
        b'{"gpugauge": 1, "boot": "boot", "gpus": {"GPU-a": {"xids": {}, "repaired": 0, "counters": "many"}}}',
        b'{"gpugauge": 1, "boot": "boot", "gpus": {"GPU-a": {"xids": {}, "repaired": 0, "counters": {"energy": []}}}}',
        b'{"gpugauge": 1, "boot": "boot", "gpus": {"GPU-a": {"xids": {}, "repaired": 1%s, "counters": {}}}}'
        % (b"0" * 400),
        b'{"gpugauge": 1, "boot": "boot", "gpus": {"GPU-a": {"xids": {"79": 1e999}, "repaired": 0, "counters": {}}}}',
    ],
)
def test_a_file_that_cannot_be_used_is_reported_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "xids.json"
    path.write_bytes(content)
    faults = Faults(FaultFile(path, "boot"))
    assert [record.getMessage() for record in caplog.records] == ["the file of Xid errors cannot be used"]
    faults.record("GPU-a", UNLINKED, T)
    faults.observe((), T)

    assert Faults(FaultFile(path, "boot")).of("GPU-a") == {UNLINKED: T}


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(FaultFile(tmp_path / "none" / "xids.json", "boot"))
    for xid in (UNLINKED, LINKED):
        faults.record("GPU-a", xid, T)
        faults.observe((), T)

    assert [record.getMessage() for record in caplog.records] == [
        "the file of Xid errors cannot be written: after a restart they will not be known"
    ]
