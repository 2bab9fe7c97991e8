"""Evidence from exported series of several GPUs, processes and phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge import catalog
from gpugauge.metric import Family, HistogramValue, Value
from gpugauge.snapshot import Section
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.facts import FAMILIES, Progress, evidence, processes
from gpugauge.verdict.window import Window

ROWS = {row.name: row for row in catalog.metrics()}
# (name, labels, value); labels that are not given are those of process p and GPU-0, or empty.
Sample = tuple[str, Mapping[str, str], Value]
BEGIN, UNIX = 100.0, 1_700_000_000.0
INSIDE: list[Sample] = [("torch_process_info", {"command": "train.py", "cuda": "12.8"}, 1.0), ("gpu_up", {}, 1.0)]


def window_of(*points: Sequence[Sample], every: float = 10.0) -> Window:
    window = Window(FAMILIES)
    for number, samples in enumerate(points):
        by_name: dict[str, list[tuple[tuple[str, ...], Value]]] = {}
        for name, given_labels, value in samples:
            labels = {"process": "p", "uuid": "GPU-0", **given_labels}
            key = tuple(labels.get(label, "") for label in ROWS[name].labels)
            by_name.setdefault(name, []).append((key, value))
        families = tuple(Family(ROWS[name], tuple(found)) for name, found in by_name.items())
        window.add(BEGIN + number * every, [Section("test", families)])
    return window


def seen(*points: Sequence[Sample], progress: Progress | None = None, unix: float = UNIX) -> Evidence:
    now = BEGIN + 10.0 * (len(points) - 1)
    return evidence(window_of(*([*INSIDE, *samples] for samples in points)), "p", now, unix, progress)


def gpu(uuid: str, busy: float, observed: float) -> list[Sample]:
    labels = {"uuid": uuid, "engine": "gpu"}
    return [
        ("gpu_up", {"uuid": uuid}, 1.0),
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


@pytest.mark.parametrize(
    ("dtypes", "tf32", "only"),
    [
        (["torch.float32"], "no", True),
        (["float32"], "no", True),
        (["torch.float32"], "yes", False),
        (["torch.bfloat16"], "no", False),
        (["torch.float32", "torch.bfloat16"], "no", False),
        (["torch.float32"], "", None),
        ([], "no", None),
    ],
)
def test_32_bit_arithmetic_needs_32_bit_parameters_and_no_tf32(dtypes: list[str], tf32: str, only: bool | None) -> None:
    elements: list[Sample] = [("torch_parameter_elements", {"dtype": dtype}, 1.0) for dtype in dtypes]

    assert seen([*elements, ("torch_build_info", {"tf32_matmul": tf32}, 1.0)]).fp32_only is only


# Bandwidth of a link with 16 lanes in one direction, GB/s, as PCI-SIG's members publish it.
_PUBLISHED = {1: 4.0, 2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}


@pytest.mark.parametrize(("generation", "width"), [*((generation, 16) for generation in _PUBLISHED), (4, 8), (3, 4)])
@pytest.mark.parametrize("direction", ["transmitted", "received"])
def test_traffic_is_a_share_of_the_link_in_use(generation: int, width: int, direction: str) -> None:
    bytes_per_second = 0.4 * _PUBLISHED[generation] * 1e9 * width / 16
    other = {"transmitted": "received", "received": "transmitted"}[direction]

    def link(second: float) -> list[Sample]:
        return [
            *gpu("GPU-0", second, second),
            ("gpu_profiled_seconds_total", {}, second),
            ("gpu_pcie_generation", {ROWS["gpu_pcie_generation"].labels[1]: "current"}, float(generation)),
            ("gpu_pcie_width", {ROWS["gpu_pcie_width"].labels[1]: "current"}, float(width)),
            (f"gpu_pcie_{direction}_bytes_total", {}, bytes_per_second * second),
            (f"gpu_pcie_{other}_bytes_total", {}, 0.1 * bytes_per_second * second),
            ("torch_loader_info", {"pin_memory": "yes"}, 1.0),
        ]

    (device,) = seen(link(0.0), link(10.0)).devices

    assert device.transfer == pytest.approx(0.4, rel=0.02)


# As measured on an H200: 19.64 batches of 256 MiB a second, for which no kernel ran in 0.69 of the time; what the GPU
# sent is replies. Peers send as much as they receive.
@pytest.mark.parametrize(
    ("pin", "received", "sent", "expected"),
    [
        ("no", 5.389e9, 0.324e9, 0.507),
        ("yes", 5.389e9, 0.324e9, 0.086),
        ("", 5.389e9, 0.324e9, None),  # copies matter if they are not pinned
        ("", 0.9e9, 0.0, 0.0143),
        ("", 45e9, 0.0, 0.714),  # a link that is always in use
        ("", 5e9, 5e9, 0.079),
        ("no", 5e9, 5e9, 0.079),
        ("no", 12e9, 1e9, 1.0),
        ("no", 1e9, 9e9, 0.143),  # a checkpoint is sent
    ],
)
def test_copies_of_memory_that_is_not_pinned_are_slower(
    pin: str, received: float, sent: float, expected: float | None
) -> None:
    def link(second: float) -> list[Sample]:
        return [
            *gpu("GPU-0", second, second),
            ("gpu_profiled_seconds_total", {}, second),
            ("gpu_pcie_generation", {ROWS["gpu_pcie_generation"].labels[1]: "current"}, 5.0),
            ("gpu_pcie_width", {ROWS["gpu_pcie_width"].labels[1]: "current"}, 16.0),
            ("gpu_pcie_transmitted_bytes_total", {}, sent * second),
            ("gpu_pcie_received_bytes_total", {}, received * second),
            *([("torch_loader_info", {"pin_memory": pin}, 1.0)] if pin else []),
        ]

    (device,) = seen(link(0.0), link(10.0)).devices

    assert device.transfer == (None if expected is None else pytest.approx(expected, rel=0.02))


@pytest.mark.parametrize("missing", ["gpu_pcie_generation", "gpu_pcie_width", "gpu_pcie_received_bytes_total"])
def test_traffic_is_unknown_without_the_link(missing: str) -> None:
    def link(second: float) -> list[Sample]:
        samples: list[Sample] = [
            ("gpu_profiled_seconds_total", {}, second),
            ("gpu_pcie_generation", {ROWS["gpu_pcie_generation"].labels[1]: "current"}, 4.0),
            ("gpu_pcie_width", {ROWS["gpu_pcie_width"].labels[1]: "current"}, 16.0),
            ("gpu_pcie_transmitted_bytes_total", {}, 1e9 * second),
            ("gpu_pcie_received_bytes_total", {}, 1e9 * second),
        ]
        return [*gpu("GPU-0", second, second), *(sample for sample in samples if sample[0] != missing)]

    assert [device.transfer for device in seen(link(0.0), link(10.0)).devices] == [None]


@given(st.dictionaries(st.sampled_from(["training", "evaluating", "checkpointing", "compiling"]), st.floats(0, 12)))
def test_pauses_are_the_share_of_phases_without_steps(phases: dict[str, float]) -> None:
    def after(share: float) -> list[Sample]:
        return [("torch_phase_seconds_total", {"phase": name}, 50 + share * s) for name, s in phases.items()]

    pauses = sum(seconds for name, seconds in phases.items() if name != "training")
    assert seen(after(0.0), after(1.0)).paused == pytest.approx(min(1.0, pauses / 10.0))


@pytest.mark.parametrize(("counted", "paused"), [(True, 0.4), (False, 0.0)])
def test_starting_is_a_pause_where_steps_are_counted(counted: bool, paused: float) -> None:
    def after(seconds: float) -> list[Sample]:
        steps: list[Sample] = [("torch_steps_total", {}, 0.0)] if counted else []
        return [("torch_phase_seconds_total", {"phase": "starting"}, seconds), *steps]

    assert seen(after(1.0), after(5.0)).paused == pytest.approx(paused)


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


@pytest.mark.parametrize(
    ("labels", "pinned", "workers"),
    [
        ({"pin_memory": "yes", "workers": "4"}, True, 4),
        ({"pin_memory": "no", "workers": "0"}, False, 0),
        ({"pin_memory": "", "workers": ""}, None, None),
    ],
)
def test_facts_about_the_loader(labels: dict[str, str], pinned: bool | None, workers: int | None) -> None:
    found = seen([("torch_loader_info", labels, 1.0)])

    assert (found.pinned, found.loader_workers) == (pinned, workers)


@pytest.mark.parametrize("command", ["", "ipykernel_launcher.py", "colab_kernel_launcher.py", "ipython", "ipython3"])
def test_prompts_and_notebooks_are_interactive(command: str) -> None:
    assert evidence(window_of([("torch_process_info", {"command": command}, 1.0)]), "p", BEGIN, UNIX, None).interactive


@pytest.mark.parametrize(("up", "has"), [([1.0], True), ([0.0], False), ([0.0, 1.0], True), ([], False)])
def test_whether_the_host_has_a_gpu(up: list[float], has: bool) -> None:
    samples: list[Sample] = [("gpu_up", {"uuid": f"GPU-{number}"}, value) for number, value in enumerate(up)]
    window = window_of([("torch_process_info", {"command": "train.py"}, 1.0), *samples])

    assert evidence(window, "p", BEGIN, UNIX, None).host_has_gpu is has


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

    assert processes(window) == {"inside", "outside"}


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
