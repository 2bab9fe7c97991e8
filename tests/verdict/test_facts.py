"""Evidence from exported series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpugauge import catalog
from gpugauge.metric import Family
from gpugauge.snapshot import Section
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.facts import FAMILIES, evidence
from gpugauge.verdict.window import Window

ROWS = {row.name: row for row in catalog.metrics()}
Series = Mapping[str, tuple[Mapping[str, str], float]]
INFO: dict[str, tuple[Mapping[str, str], float]] = {"torch_process_info": ({"cuda": "12.8"}, 1)}


def section(series: Series) -> Section:
    """Return one series of process p per name; other labels are empty."""
    found = []
    for name, (given, value) in series.items():
        labels = {"process": "p", "uuid": "GPU-0", **given}
        found.append(Family(ROWS[name], ((tuple(labels.get(label, "") for label in ROWS[name].labels), value),)))
    return Section("test", tuple(found))


def seen(*points: Series) -> Evidence:
    """Return the evidence of points 5 s apart."""
    window = Window(FAMILIES)
    for i, series in enumerate(points):
        window.add(5.0 * i, [section(series)])
    return evidence(window, "p", 5.0 * (len(points) - 1), 1_000.0, None)


def build(**facts: str) -> Series:
    return {**INFO, "torch_build_info": (facts, 1)}


def test_every_family_of_the_window_is_exported() -> None:
    assert set(ROWS) >= FAMILIES.names


@pytest.mark.parametrize(
    ("facts", "devices"),
    [
        ({"visible_devices": "2", "device_nodes": "0", "kernel_driver": "570.1"}, 2),
        ({"cuda_visible_devices": "(empty)"}, 0),
        ({"cuda_visible_devices": "-1"}, 0),
        ({"cuda_visible_devices": "0,1"}, None),
        ({"device_nodes": "0", "kernel_driver": "570.1"}, 0),
        ({"device_nodes": "0"}, None),
        ({}, None),
    ],
)
def test_visible_devices(facts: dict[str, str], devices: int | None) -> None:
    assert seen(build(**facts)).visible_devices == devices


@pytest.mark.parametrize(
    ("cuda", "driver", "too_old"),
    [
        ("11.8", "450.51.06", False),
        ("11.8", "418.226.00", True),
        ("12.8", "525.60.13", False),
        ("12.8", "515.105.01", True),
        ("12.8", "535.183.01", False),
        ("12.8", "470.57", True),
        ("13.0", "570.124.06", True),
        ("13.0", "580.65", False),
        ("", "580.65", None),
        ("12.8", "", None),
    ],
)
def test_driver_too_old_for_the_build(cuda: str, driver: str, too_old: bool | None) -> None:
    points: Series = {"torch_process_info": ({"cuda": cuda}, 1), "torch_build_info": ({"kernel_driver": driver}, 1)}

    assert seen(points).driver_too_old is too_old


@pytest.mark.parametrize(
    ("architectures", "capability", "supported"),
    [
        ("sm_80 sm_90", "9.0", True),
        ("sm_80 sm_90", "12.0", False),
        ("", "9.0", None),
        ("sm_80", "", None),
    ],
)
def test_architectures_against_the_device(architectures: str, capability: str, supported: bool | None) -> None:
    points = {**build(architectures=architectures), "torch_device_info": ({"capability": capability}, 1.0)}

    assert seen(points).arch_supported is supported


@pytest.mark.parametrize(
    ("dtype", "tf32", "autocast", "only"),
    [
        ("torch.float32", "no", "no", True),
        ("torch.float32", "no", "", True),
        ("torch.float32", "no", "yes", False),
        ("torch.float32", "yes", "no", False),
        ("torch.bfloat16", "no", "no", False),
        ("torch.float32", "", "no", None),
    ],
)
def test_arithmetic_in_32_bits(dtype: str, tf32: str, autocast: str, only: bool | None) -> None:
    series = build(tf32_matmul=tf32) if tf32 else dict(INFO)
    series = {**series, "torch_parameter_elements": ({"device": "cuda:0", "dtype": dtype}, 1e6)}
    series = {**series, "torch_settings_info": ({"autocast": autocast}, 1)}
    assert seen(series).fp32_only is only


@pytest.mark.parametrize(("command", "interactive"), [("ipykernel_launcher.py", True), ("", True), ("train.py", False)])
def test_interactive_programs(command: str, interactive: bool) -> None:
    assert seen({"torch_process_info": ({"command": command}, 1)}).interactive is interactive


@pytest.mark.parametrize(
    ("limit", "default", "lowered"),
    [(400.0, 700.0, True), (700.0, 700.0, False), (750.0, 700.0, False), (None, 700.0, None), (400.0, None, None)],
)
def test_power_limit_below_the_default_is_lowered(
    limit: float | None, default: float | None, lowered: bool | None
) -> None:
    held = {**INFO, "gpu_process_memory_used_bytes": ({}, 1e9), "gpu_up": ({}, 1.0)}
    given = {"gpu_power_limit_watts": limit, "gpu_power_limit_default_watts": default}
    series = held | {name: ({}, value) for name, value in given.items() if value is not None}

    (device,) = seen(series, series).devices

    assert device.power_limit_lowered is lowered


REASONS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_power_cap")


@pytest.mark.parametrize("reason", REASONS)
def test_a_clocks_event_counts_for_the_share_of_the_time_in_which_it_is_active(reason: str) -> None:
    held = {**INFO, "gpu_process_memory_used_bytes": ({}, 1e9), "gpu_up": ({}, 1.0)}
    label = ROWS["gpu_clocks_event_active"].labels[1]

    (device,) = seen(
        *({**held, "gpu_clocks_event_active": ({label: reason}, on)} for on in (0.0, 1.0, 1.0, 0.0))
    ).devices

    shares = {"power_capped": device.power_capped, "thermal": device.thermal}
    other = {"thermal": None} if reason == "sw_power_cap" else {"power_capped": None}
    assert shares == {"thermal": 0.5, "power_capped": 0.5} | other


@pytest.mark.parametrize("inside", [True, False])
def test_counters_of_multiprocessors_are_shares_of_the_profiled_time(inside: bool) -> None:
    def after(seconds: float) -> Series:
        return {
            **(INFO if inside else {}),
            "gpu_up": ({}, 1.0),
            "gpu_process_memory_used_bytes": ({}, 1e9),
            "gpu_profiled_seconds_total": ({}, seconds),
            "gpu_sm_active_seconds_total": ({}, 0.6 * seconds),
            "gpu_tensor_active_seconds_total": ({}, 0.2 * seconds),
        }

    (device,) = seen(after(0.0), after(5.0)).devices

    assert device.sm_active == pytest.approx(0.6)
    assert device.tensor_active == (pytest.approx(0.2) if inside else None)


def waits(seconds: float, **more: Any) -> Series:
    return {**INFO, "torch_data_wait_seconds_total": ({"phase": "training"}, seconds), **more}


def test_shares_refer_to_the_lifetime_of_the_process() -> None:
    nobody: Series = {}

    found = seen(nobody, nobody, nobody, waits(0.0), waits(4.0), waits(8.0))

    assert (found.window, found.data_wait) == (10.0, 0.8)


def test_load_before_the_process_does_not_count() -> None:
    def device(busy: float) -> Series:
        return {
            "gpu_up": ({}, 1.0),
            "gpu_busy_seconds_total": ({"engine": "gpu"}, busy),
            "gpu_observed_seconds_total": ({"engine": "gpu"}, busy + 100.0),
            "gpu_process_memory_used_bytes": ({}, 1e9),
        }

    idle = {**device(0.0), "gpu_observed_seconds_total": ({"engine": "gpu"}, 0.0)}
    found = seen(idle, device(0.0), {**device(0.0), **INFO}, {**device(5.0), **INFO})

    assert [c.busy for c in found.devices] == [1.0]


def shared(busy: float, own: float, unowned: float) -> Series:
    return {
        "gpu_up": ({}, 1.0),
        "gpu_busy_seconds_total": ({"engine": "gpu"}, busy),
        "gpu_observed_seconds_total": ({"engine": "gpu"}, 2 * busy),
        "gpu_process_busy_seconds_total": ({}, own),
        "gpu_unaccounted_busy_seconds_total": ({}, unowned),
        "gpu_process_memory_used_bytes": ({}, 1e9),
        "gpu_process_start_timestamp_seconds": ({}, 900.0),
        "gpu_process_cgroup_throttled_seconds_total": ({}, busy),
    }


def test_busy_time_is_split_by_owner() -> None:
    (device,) = seen({**shared(0.0, 0.0, 0.0), **INFO}, {**shared(4.0, 1.0, 2.0), **INFO}).devices

    assert (device.busy, device.own_busy, device.unowned_busy) == (0.5, 0.125, 0.25)


def test_evidence_without_the_hook_is_age_and_load() -> None:
    found = seen(shared(0.0, 0.0, 0.0), shared(4.0, 1.0, 2.0))

    assert found == Evidence(window=5.0, age=100.0, devices=(DeviceEvidence(busy=0.5),))


def test_pauses_are_shares_of_time() -> None:
    def evaluated(seconds: float) -> Series:
        return {**INFO, "torch_phase_seconds_total": ({"phase": "evaluating"}, seconds)}

    assert seen(evaluated(0.0), evaluated(1.0), evaluated(2.0)).paused == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("phase", "worked"),
    [
        ("starting", False),
        ("loading", False),
        ("checkpointing", False),  # a training that resumes saves before its first step
        ("compiling", False),
        ("generating", False),  # a server
        ("evaluating", True),
        ("training", True),
        ("other", True),
    ],
)
def test_phases_that_show_a_training_without_known_steps(phase: str, worked: bool) -> None:
    series: Series = {**INFO, "torch_phase_seconds_total": ({"phase": phase}, 3.0)}

    assert seen(series, series).worked is worked
