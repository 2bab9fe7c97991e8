"""Evidence from exported series of several GPUs, processes and phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qa.worlds.scraped import node_of

from gpugauge import catalog
from gpugauge.metric import Family, HistogramValue, Value
from gpugauge.node.window import Track, Window
from gpugauge.snapshot import Section
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.facts import Progress, evidence, processes, throttled_share
from gpugauge.workload.processfiles import Cgroup

ROWS = {row.name: row for row in catalog.metrics()}
# (name, labels, value); labels that are not given are those of process p and GPU-0, or empty.
Sample = tuple[str, Mapping[str, str], Value]
BEGIN, UNIX = 100.0, 1_700_000_000.0
INSIDE: list[Sample] = [("torch_process_info", {"command": "train.py", "cuda": "12.8"}, 1.0), ("gpu_up", {}, 1.0)]


def window_of(*points: Sequence[Sample], every: float = 10.0) -> Window:
    window = Window()
    for number, samples in enumerate(points):
        by_name: dict[str, list[tuple[tuple[str, ...], Value]]] = {}
        for name, given_labels, value in samples:
            labels = {"process": "p", "uuid": "GPU-0", **given_labels}
            key = tuple(labels.get(label, "") for label in ROWS[name].labels)
            by_name.setdefault(name, []).append((key, value))
        families = tuple(Family(ROWS[name], tuple(found)) for name, found in by_name.items())
        window.add(node_of([Section("test", families)], monotonic=BEGIN + number * every))
    return window


def seen(*points: Sequence[Sample], progress: Progress | None = None, unix: float = UNIX) -> Evidence:
    now = BEGIN + 10.0 * (len(points) - 1)
    return evidence(window_of(*([*INSIDE, *samples] for samples in points)), "p", now, unix, progress)


Series = Mapping[str, tuple[Mapping[str, str], float]]
INFO: Series = {"torch_process_info": ({"cuda": "12.8"}, 1.0)}


def judged(*points: Series) -> Evidence:
    """Return the evidence of points 5 s apart, each with one series per name and nothing else."""
    window = window_of(*([(name, *of) for name, of in point.items()] for point in points), every=5.0)
    return evidence(window, "p", BEGIN + 5.0 * (len(points) - 1), 1_000.0, None)


def gpu(uuid: str, busy: float, observed: float) -> list[Sample]:
    labels = {"uuid": uuid, "engine": "gpu"}
    return [
        ("gpu_up", {"uuid": uuid}, 1.0),
        ("gpu_process_info", {}, 1.0),
        ("gpu_process_memory_used_bytes", {"uuid": uuid}, 1e9),
        ("gpu_busy_seconds_total", labels, busy),
        ("gpu_observed_seconds_total", labels, observed),
    ]


def test_gpus_that_are_held_and_never_busy_are_counted_apart() -> None:
    def both(second: float) -> list[Sample]:
        unknown: list[Sample] = [("gpu_up", {"uuid": "GPU-c"}, 1.0)]
        memory: list[Sample] = [("gpu_process_memory_used_bytes", {"uuid": "GPU-c"}, 1e9)]
        return [*gpu("GPU-a", 0.5 * second, second), *gpu("GPU-b", 0.004 * second, second), *unknown, *memory]

    found = seen(both(0.0), both(10.0))

    # The load of GPU-c is not known: it is not called unused.
    assert [device.busy for device in found.devices] == [pytest.approx(0.5), None]
    assert found.unused_devices == 1


def test_gpus_that_all_idle_are_not_unused_but_idle() -> None:
    found = seen(
        [*gpu("GPU-a", 0.0, 0.0), *gpu("GPU-b", 0.0, 0.0)], [*gpu("GPU-a", 0.0, 10.0), *gpu("GPU-b", 0.0, 10.0)]
    )

    assert ([device.busy for device in found.devices], found.unused_devices) == ([0.0, 0.0], 0)


def test_a_gpu_that_is_busy_for_half_a_percent_is_used() -> None:
    found = seen(
        [*gpu("GPU-a", 0.0, 0.0), *gpu("GPU-b", 0.0, 0.0)], [*gpu("GPU-a", 9.0, 10.0), *gpu("GPU-b", 0.06, 10.0)]
    )

    assert (len(found.devices), found.unused_devices) == (2, 0)


def test_parameters_are_added_by_kind_of_device() -> None:
    found = seen(
        [
            ("torch_parameter_bytes", {"device": "cuda:0", "dtype": "torch.float32"}, 4e9),
            ("torch_parameter_bytes", {"device": "cuda:1", "dtype": "torch.float32"}, 2e9),
            ("torch_parameter_bytes", {"device": "cpu", "dtype": "torch.bfloat16"}, 1e9),
        ]
    )

    assert found.parameters == {"cuda": 6e9, "cpu": 1e9}


def test_32_bit_arithmetic_needs_32_bit_parameters_and_no_tf32() -> None:
    for dtypes, tf32, autocast, only in (
        ("torch.float32", "no", "no", True),
        ("torch.float32", "no", "", True),
        ("float32", "no", "", True),
        ("torch.float32", "no", "yes", False),
        ("torch.float32", "yes", "no", False),
        ("torch.bfloat16", "no", "no", False),
        ("torch.float32 torch.bfloat16", "no", "", False),
        ("torch.float32", "", "no", None),
        ("", "no", "", None),
    ):
        samples: list[Sample] = [("torch_parameter_elements", {"dtype": dtype}, 1.0) for dtype in dtypes.split()]
        samples += [("torch_build_info", {"tf32_matmul": tf32}, 1.0)] if tf32 else []
        samples += [("torch_settings_info", {"autocast": autocast}, 1.0)]
        assert seen(samples).fp32_only is only, (dtypes, tf32, autocast)


def link(second: float, generation: float, width: float, received: float, sent: float) -> list[Sample]:
    """Return a busy GPU after some seconds of so many bytes per second over a link."""
    current = {name: {ROWS[name].labels[1]: "current"} for name in ("gpu_pcie_generation", "gpu_pcie_width")}
    return [
        *gpu("GPU-0", second, second),
        ("gpu_profiled_seconds_total", {}, second),
        ("gpu_pcie_generation", current["gpu_pcie_generation"], generation),
        ("gpu_pcie_width", current["gpu_pcie_width"], width),
        ("gpu_pcie_transmitted_bytes_total", {}, sent * second),
        ("gpu_pcie_received_bytes_total", {}, received * second),
    ]


PINNED: Sample = ("torch_loader_info", {"pin_memory": "yes"}, 1.0)
# Bandwidth of a link with 16 lanes in one direction, GB/s, as PCI-SIG's members publish it.
_PUBLISHED = {1: 4.0, 2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}


def test_traffic_is_a_share_of_the_link_in_use() -> None:
    for generation, width in (*((generation, 16) for generation in _PUBLISHED), (4, 8), (3, 4)):
        rate = 0.4 * _PUBLISHED[generation] * 1e9 * width / 16
        for received, sent in ((rate, 0.1 * rate), (0.1 * rate, rate)):
            points = ([PINNED, *link(second, generation, width, received, sent)] for second in (0.0, 10.0))
            (device,) = seen(*points).devices
            assert device.transfer == pytest.approx(0.4, rel=0.02), (generation, width, received)


# As measured on an H200: 19.64 batches of 256 MiB a second, for which no kernel ran in 0.69 of the time; what the GPU
# sent is replies. Peers send as much as they receive.
def test_copies_of_memory_that_is_not_pinned_are_slower() -> None:
    for pin, received, sent, expected in (
        ("no", 5.389e9, 0.324e9, 0.507),
        ("yes", 5.389e9, 0.324e9, 0.086),
        ("", 5.389e9, 0.324e9, None),  # copies matter if they are not pinned
        ("", 0.9e9, 0.0, 0.0143),
        ("", 45e9, 0.0, 0.714),  # a link that is always in use
        ("", 5e9, 5e9, 0.079),
        ("no", 5e9, 5e9, 0.079),
        ("no", 12e9, 1e9, 1.0),
        ("no", 1e9, 9e9, 0.143),  # a checkpoint is sent
    ):
        pinned: list[Sample] = [("torch_loader_info", {"pin_memory": pin}, 1.0)] if pin else []
        (device,) = seen(*([*link(second, 5.0, 16.0, received, sent), *pinned] for second in (0.0, 10.0))).devices
        assert device.transfer == (None if expected is None else pytest.approx(expected, rel=0.02)), (pin, received)


def test_traffic_is_unknown_without_the_link() -> None:
    for missing in ("gpu_pcie_generation", "gpu_pcie_width", "gpu_pcie_received_bytes_total"):
        points = (link(second, 4.0, 16.0, 1e9, 1e9) for second in (0.0, 10.0))
        (device,) = seen(*([sample for sample in point if sample[0] != missing] for point in points)).devices
        assert device.transfer is None, missing


@given(st.dictionaries(st.sampled_from(["training", "evaluating", "checkpointing", "compiling"]), st.floats(0, 12)))
def test_pauses_are_the_share_of_phases_without_steps(phases: dict[str, float]) -> None:
    def after(share: float) -> list[Sample]:
        return [("torch_phase_seconds_total", {"phase": name}, 50 + share * s) for name, s in phases.items()]

    pauses = sum(seconds for name, seconds in phases.items() if name != "training")
    assert seen(after(0.0), after(1.0)).paused == pytest.approx(min(1.0, pauses / 10.0))


def test_starting_is_a_pause_where_steps_are_counted() -> None:
    starting: list[list[Sample]] = [[("torch_phase_seconds_total", {"phase": "starting"}, s)] for s in (1.0, 5.0)]
    steps: list[Sample] = [("torch_steps_total", {}, 0.0)]

    assert seen(*starting).window == 10.0
    assert seen(*([*point, *steps] for point in starting)).window == 6.0


def test_ages_and_progress() -> None:
    found = seen(
        [
            ("training_start_timestamp_seconds", {}, UNIX - 500),
            ("gpu_process_start_timestamp_seconds", {}, UNIX - 900),
            ("training_phase_since_timestamp_seconds", {}, UNIX - 7),
        ],
        progress=Progress(3, BEGIN - 20),
    )

    assert (found.age, found.phase_age, found.since_progress) == (500, 7, 20)
    outside = evidence(
        window_of([*gpu("GPU-0", 0, 0), ("gpu_process_start_timestamp_seconds", {}, UNIX - 9)]), "p", BEGIN, UNIX, None
    )
    assert (outside.inside, outside.age) == (False, 9)


def test_what_the_hook_counts() -> None:
    def at(steps: float, batches: float, retries: float, allocs: float, local: float) -> list[Sample]:
        return [
            ("torch_steps_total", {}, steps),
            ("torch_batches_total", {}, batches),
            ("torch_memory_alloc_retries_total", {"uuid": "GPU-0"}, retries),
            ("torch_memory_alloc_retries_total", {"uuid": "GPU-1"}, 2 * retries),
            ("torch_memory_ooms_total", {"uuid": "GPU-0"}, retries + 1),
            ("torch_memory_device_allocs_total", {"uuid": "GPU-0"}, allocs),
            ("torch_memory_device_frees_total", {"uuid": "GPU-0"}, 3 * allocs),
            ("torch_step_duration_seconds", {}, HistogramValue((1,) * 20, 2 * local)),
            ("torch_local_work_seconds_total", {}, local),
        ]

    found = seen(at(10, 20, 1, 100, 1), at(17, 40, 3, 150, 4))

    assert (found.steps, found.steps_ever, found.batches, found.batches_ever) == (7, 17, 20, 40)
    assert (found.retries, found.ooms, found.device_allocs, found.device_frees) == (6, 2, 50, 150)
    assert found.local_work == pytest.approx(0.5)


def test_what_is_not_counted_is_unknown() -> None:
    found = seen([], [])

    unknown = (found.steps, found.steps_ever, found.batches, found.batches_ever, found.local_work, found.phase_age)
    assert unknown == (None,) * 6
    assert (found.device_allocs, found.device_frees, found.since_progress, found.age) == (None,) * 4
    assert (found.retries, found.ooms, found.build, found.pinned, found.loader_workers) == (0, 0, None, None, None)


def test_facts_about_the_loader() -> None:
    for pin, count, pinned, workers in (("yes", "4", True, 4), ("no", "0", False, 0), ("", "", None, None)):
        found = seen([("torch_loader_info", {"pin_memory": pin, "workers": count}, 1.0)])
        assert (found.pinned, found.loader_workers) == (pinned, workers)


def test_prompts_and_notebooks_are_interactive() -> None:
    prompts = ["", "ipykernel_launcher.py", "colab_kernel_launcher.py", "ipython", "ipython3"]

    commands = [*prompts, "train.py"]
    assert [c for c in commands if judged({"torch_process_info": ({"command": c}, 1.0)}).interactive] == prompts


def test_whether_the_host_has_a_gpu() -> None:
    rows: tuple[tuple[list[float], bool], ...] = (([1.0], True), ([0.0], False), ([0.0, 1.0], True), ([], False))
    for up, has in rows:
        samples: list[Sample] = [("gpu_up", {"uuid": f"GPU-{number}"}, value) for number, value in enumerate(up)]
        window = window_of([("torch_process_info", {"command": "train.py"}, 1.0), *samples])
        assert evidence(window, "p", BEGIN, UNIX, None).host_has_gpu is has, up


def test_a_wait_for_a_batch_that_has_ended_is_work() -> None:
    waited: list[Sample] = [("torch_data_wait_seconds_total", {"phase": "training"}, 0.5)]

    assert seen([("torch_phase_seconds_total", {"phase": "loading"}, 1.0), *waited]).worked


def test_the_processes_that_can_be_judged() -> None:
    window = window_of(
        [
            ("torch_process_info", {"process": "inside"}, 1.0),
            ("torch_process_info", {"process": "ended"}, 1.0),
            ("training_end_timestamp_seconds", {"process": "ended"}, UNIX),
            ("gpu_process_memory_used_bytes", {"process": "outside"}, 1e9),
            ("gpu_process_host_info", {"process": "outside", "torch_build": "cuda"}, 1.0),
            ("gpu_process_memory_used_bytes", {"process": "other"}, 1e9),
            ("gpu_process_memory_used_bytes", {"process": "xorg"}, 1e9),
            ("gpu_process_host_info", {"process": "xorg", "torch_build": ""}, 1.0),
            ("gpu_process_memory_used_bytes", {"process": "unreadable"}, 1e9),
            ("gpu_process_host_info", {"process": "on-the-cpu", "torch_build": "cpu"}, 1.0),
        ]
    )

    assert processes(window.node) == {"inside", "outside"}


def test_the_higher_of_two_pressures_counts() -> None:
    name = "gpu_process_cgroup_pressure_seconds_total"

    def after(memory: float, io: float) -> list[Sample]:
        return [
            (name, {"resource": "memory"}, memory),
            (name, {"resource": "io"}, io),
            (name, {"resource": "cpu"}, 9 * io),
        ]

    assert seen(after(0.0, 0.0), after(3.0, 5.0)).memory_pressure == pytest.approx(0.5)
    assert seen([], []).memory_pressure is None


@given(st.lists(st.floats(0.0005, 1000.0), max_size=300))
def test_a_slow_step_is_as_long_as_the_99th_percentile_of_the_steps(steps: list[float]) -> None:
    bounds = ROWS["torch_step_duration_seconds"].buckets
    counts = tuple(sum(step <= bound for step in steps) for bound in (*bounds, float("inf")))
    found = seen([("torch_step_duration_seconds", {}, HistogramValue(counts, sum(steps)))]).slow_step

    if not steps:
        assert found is None
        return
    assert found in bounds
    longer = sum(step > found for step in steps)  # as is allowed for one step in a hundred
    assert longer <= 0.01 * len(steps) + 1e-9 or found == bounds[-1]
    shorter_bounds = [bound for bound in bounds if bound < found]
    assert not shorter_bounds or sum(step > shorter_bounds[-1] for step in steps) > 0.01 * len(steps) - 1e-9


def build(**facts: str) -> Series:
    return {**INFO, "torch_build_info": (facts, 1)}


def test_visible_devices() -> None:
    cases: list[tuple[dict[str, str], int | None]] = [
        ({"visible_devices": "2", "device_nodes": "0", "kernel_driver": "570.1"}, 2),
        ({"cuda_visible_devices": "(empty)"}, 0),
        ({"cuda_visible_devices": "-1"}, 0),
        ({"cuda_visible_devices": "0,1"}, None),
        ({"device_nodes": "0", "kernel_driver": "570.1"}, 0),
        ({"device_nodes": "0"}, None),
        ({}, None),
    ]

    assert [judged(build(**facts)).visible_devices for facts, _ in cases] == [devices for _, devices in cases]


def test_driver_too_old_for_the_build() -> None:
    for cuda, driver, too_old in (
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
    ):
        facts = {"torch_process_info": ({"cuda": cuda}, 1.0), "torch_build_info": ({"kernel_driver": driver}, 1.0)}
        assert judged(facts).driver_too_old is too_old, (cuda, driver)


def test_architectures_against_the_device() -> None:
    for architectures, capability, supported in (
        ("sm_80 sm_90", "9.0", True),
        ("sm_80 sm_90", "12.0", False),
        ("", "9.0", None),
        ("sm_80", "", None),
    ):
        facts = {**build(architectures=architectures), "torch_device_info": ({"capability": capability}, 1.0)}
        assert judged(facts).arch_supported is supported, (architectures, capability)


HELD: Series = {**INFO, "gpu_process_memory_used_bytes": ({}, 1e9), "gpu_up": ({}, 1.0)}


def test_power_limit_below_the_default_is_lowered() -> None:
    for limit, default, lowered in (
        (400.0, 700.0, True),
        (700.0, 700.0, False),
        (750.0, 700.0, False),
        (None, 700.0, None),
        (400.0, None, None),
    ):
        given = {"gpu_power_limit_watts": limit, "gpu_power_limit_default_watts": default}
        series: Series = {**HELD, **{name: ({}, value) for name, value in given.items() if value is not None}}
        (device,) = judged(series, series).devices
        assert device.power_limit_lowered is lowered, (limit, default)


REASONS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_power_cap")


def test_a_clocks_event_counts_for_the_share_of_the_time_in_which_it_is_active() -> None:
    label = ROWS["gpu_clocks_event_active"].labels[1]
    for reason in REASONS:
        points: list[Series] = [
            {**HELD, "gpu_clocks_event_active": ({label: reason}, on)} for on in (0.0, 1.0, 1.0, 0.0)
        ]
        (device,) = judged(*points).devices
        expected = (None, 0.5) if reason == "sw_power_cap" else (0.5, None)
        assert (device.thermal, device.power_capped) == expected, reason


def test_counters_of_multiprocessors_are_shares_of_the_profiled_time() -> None:
    def after(seconds: float) -> Series:
        return {
            **HELD,
            "gpu_profiled_seconds_total": ({}, seconds),
            "gpu_sm_active_seconds_total": ({}, 0.6 * seconds),
            "gpu_tensor_active_seconds_total": ({}, 0.2 * seconds),
        }

    points = [after(0.0), after(5.0)]
    (device,) = judged(*points).devices
    outside = [{name: one for name, one in point.items() if name != "torch_process_info"} for point in points]
    (unhooked,) = judged(*outside).devices

    assert (device.sm_active, device.tensor_active) == pytest.approx((0.6, 0.2))
    assert unhooked.sm_active == pytest.approx(0.6)
    assert unhooked.tensor_active is None


def waits(seconds: float, **more: Any) -> Series:
    return {**INFO, "torch_data_wait_seconds_total": ({"phase": "training"}, seconds), **more}


def test_shares_refer_to_the_lifetime_of_the_process() -> None:
    nobody: Series = {}

    found = judged(nobody, nobody, nobody, waits(0.0), waits(4.0), waits(8.0))

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
    found = judged(idle, device(0.0), {**device(0.0), **INFO}, {**device(5.0), **INFO})

    assert [c.busy for c in found.devices] == [1.0]


def shared(busy: float, own: float, unowned: float) -> Series:
    return {
        "gpu_up": ({}, 1.0),
        "gpu_busy_seconds_total": ({"engine": "gpu"}, busy),
        "gpu_observed_seconds_total": ({"engine": "gpu"}, 2 * busy),
        "gpu_process_busy_seconds_total": ({}, own),
        "gpu_unaccounted_busy_seconds_total": ({}, unowned),
        "gpu_process_memory_used_bytes": ({}, 1e9),
        "gpu_process_info": ({}, 1.0),
        "gpu_process_start_timestamp_seconds": ({}, 900.0),
        "gpu_process_cgroup_throttled_seconds_total": ({}, busy),
    }


def test_busy_time_is_split_by_owner() -> None:
    (device,) = judged({**shared(0.0, 0.0, 0.0), **INFO}, {**shared(4.0, 1.0, 2.0), **INFO}).devices

    assert (device.busy, device.own_busy, device.unowned_busy) == (0.5, 0.125, 0.25)


def test_evidence_without_the_hook_is_age_and_load() -> None:
    found = judged(shared(0.0, 0.0, 0.0), shared(4.0, 1.0, 2.0))

    assert found == Evidence(window=5.0, age=100.0, devices=(DeviceEvidence(busy=0.5),), held=1.0)


def test_phases_that_show_a_training_without_known_steps() -> None:
    for phase, worked in (
        ("starting", False),
        ("loading", False),
        ("checkpointing", False),  # a training that resumes saves before its first step
        ("compiling", False),
        ("generating", False),  # a server
        ("evaluating", True),
        ("training", True),
        ("other", True),
    ):
        series: Series = {**INFO, "torch_phase_seconds_total": ({"phase": phase}, 3.0)}
        assert judged(series, series).worked is worked, phase


def test_a_cgroup_that_uses_all_of_its_quota_withholds_what_the_thread_is_queued() -> None:
    for used, share in ((4.9, 0.5), (3.0, 0.1)):
        found = [(at, Cgroup(0.5, at / 10, {}, at=at, used=at / 10 * used)) for at in (0.0, 10.0)]
        assert throttled_share(Track([found]), 0.5) == share
