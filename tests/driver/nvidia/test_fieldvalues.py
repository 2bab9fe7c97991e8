from __future__ import annotations

from typing import Any

import pytest

from gpugauge.driver.codes import IMPLAUSIBLE
from gpugauge.driver.nvidia.fieldvalues import field_values
from tests.drawn import cases
from tests.driver.nvidia.otherdriver import clocked
from tests.simulator.build import opened

THERMAL = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
HOT = "health: {throttling: [{reason: sw_thermal_slowdown, start: 0, end: 2}]}"


def ids(version: str | None) -> dict[str | None, int]:
    rows = field_values(version)
    return {row.key: row.id for row in rows if row.field == "clocks_event_nanoseconds" and row.key in THERMAL}


@cases(
    ("version", "first"),
    [
        (None, None),
        ("garbage", None),
        ("470.256.02", None),
        ("570.124.06", None),
        ("575.57.08", 251),
        ("580.65.06", 251),
        ("580.76.05", None),  # unknown
        ("580.82.07", 269),
        ("590.1", 269),
    ],
)
def test_ids_of_throttle_counters_follow_the_driver(version: str | None, first: int | None) -> None:
    expected = {} if first is None else {key: first + place for place, key in enumerate(THERMAL)}

    assert ids(version) == expected


@cases("version", ["570.124.06", "575.57.08", "580.95.05"])
def test_throttled_seconds_are_right_or_absent(version: str) -> None:
    nvml, clock = clocked(f"driver: {{version: {version}}}\ngpus: [{{model: b200, {HOT}}}]")
    clock.now = 10.0
    counters = nvml.read(0, ["normal"])[0]["normal"]["clocks_event_nanoseconds"]

    assert counters.get("sw_thermal_slowdown") == (None if version.startswith("570") else 2_000_000_000)


def test_one_call_for_all_groups() -> None:
    nvml = opened("gpus: {model: h100}")
    nvml.read(0, ["slow"])  # the first reading also asks for the number of NVLinks
    nvml.calls.take()
    nvml.read(0, ["static", "fast", "normal", "slow"])

    assert nvml.calls.take()["nvmlDeviceGetFieldValues"][0] == 1


def slow(text: str, **health: Any) -> dict[str, Any]:
    nvml, clock = clocked(f"driver: {{version: 580.95.05}}\ngpus: [{{model: {text}}}]")
    clock.now = 60.0
    return nvml.read(0, ["slow"])[0]["slow"]


def test_ecc_and_remapped_rows() -> None:
    health = "{ecc: [{at: -9, kind: corrected, count: 5}, {at: 9, kind: corrected, count: 2}], "
    values = slow(f"h100, health: {health} remapped_rows: {{uncorrectable: 1, pending: 1}}, recovery_action: 1}}")

    assert values["ecc_errors"]["corrected_volatile"] == 2
    assert values["ecc_errors"]["corrected_aggregate"] == 7
    assert values["remapped_rows"] == {"correctable": 0, "uncorrectable": 1}
    assert (values["remapped_rows_pending"], values["remapped_rows_failure"]) == (True, False)
    assert values["recovery_action"] == "gpu_reset"
    assert "retired_pages" not in values


def test_retired_pages_before_ampere() -> None:
    values = slow("t4, health: {retired_pages: {single_bit: 3, pending: 1}}")

    assert values["retired_pages"] == {"single_bit": 3, "double_bit": 0}
    assert values["retired_pages_pending"] is True
    assert "remapped_rows" not in values


def test_links() -> None:
    values = slow(
        "h100, health: {pcie_width: 8, pcie_replays: 4, pcie_errors: {fatal: 1}, nvlinks_down: [3], "
        "nvlink_errors: {replay: 6}}"
    )

    assert (values["pcie_width"], values["pcie_generation"], values["pcie_replays"]) == (8, 5, 4)
    assert values["pcie_errors"]["fatal"] == 1
    assert [link for link, up in values["nvlink_active"].items() if not up] == ["3"]
    assert (values["nvlink_speed_megabytes_per_second"]["3"], values["nvlink_speed_megabytes_per_second"]["4"]) == (
        0,
        26562,
    )
    assert values["nvlink_errors"] == {"crc_flit": 0, "crc_data": 0, "replay": 6, "recovery": 0, "ecc_data": 0}


def test_nvlink_5_has_other_counters() -> None:
    values = slow("b200, health: {nvlink_errors: {link_integrity: 6}}")

    assert values["nvlink_errors"]["link_integrity"] == 6
    assert "crc_flit" not in values["nvlink_errors"]


@cases("model", ["a100", "b200"])
def test_nvlink_bytes_in_any_unit(model: str) -> None:
    nvml, clock = clocked(f"driver: {{version: 580.95.05}}\ngpus: [{{model: {model}, load: 0.5}}]")
    clock.now = 10.0
    values = nvml.read(0, ["normal"])[0]["normal"]

    assert values["nvlink_transmitted_bytes"] == pytest.approx(120e9 * 0.4 * 5, abs=1024)
    assert values["nvlink_received_bytes"] == values["nvlink_transmitted_bytes"]


def test_speeds_of_links_with_an_old_driver() -> None:
    values, _ = opened("driver: {version: 470.256.02}\ngpus: {model: a100}").read(0, ["slow"])

    assert values["slow"]["nvlink_speed_megabytes_per_second"] == {str(link): 25781 for link in range(12)}


def test_all_32_bits_set_is_not_a_count() -> None:
    nvml = opened("gpus: {model: h100}\nfaults: [{call: nvmlDeviceGetFieldValues, value: 4294967295}]")

    values, errors = nvml.read(0, ["slow"])

    assert errors["pcie_replays"] == errors["pcie_errors"] == IMPLAUSIBLE
    assert not values["slow"].keys() & {"pcie_replays", "pcie_errors", "ecc_mode"}


def test_counters_start_again_at_a_reset() -> None:
    nvml, clock = clocked("gpus: [{model: a100, load: 1.0, health: {counters_reset_at: 30, pcie_replays: 9}}]")
    replays, energy = list[Any](), list[Any]()
    for clock.now in (29.0, 31.0, 33.0):
        values, _ = nvml.read(0, ["normal", "slow"])
        replays.append(values["slow"].get("pcie_replays"))
        energy.append(values["normal"].get("energy_millijoules"))

    # A single low reading may be garbage.
    assert replays == [9, None, 0]
    assert energy[1] is None
    assert energy[2] < energy[0]
