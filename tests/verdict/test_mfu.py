"""Model FLOPs utilization: drawn trainings on GPUs of the table, against the ratio computed by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from qa.worlds.scraped import node_of

from gpugauge import catalog
from gpugauge.driver.vendors import peak, tensor_speedup
from gpugauge.driver.vendors.vendor import DTYPES, peaks_of
from gpugauge.metric import Family, HistogramValue, LabelValues, Value
from gpugauge.node.window import Window
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.snapshot import Section
from gpugauge.verdict.mfu import model_flops_utilization
from tests.drawn import seeds
from tests.virtual import VirtualDaemon

PEAKS = peaks_of("NVIDIA")
ROWS = {row.name: row for row in catalog.metrics()}
# Full names as torch and NVML give them, and the TFLOP/s in bfloat16 (float16 before Ampere) of the data sheet: with
# sparsity where it has that.
GPUS = {
    "Tesla V100-SXM2-32GB": 125,
    "Tesla T4": 65,
    "NVIDIA A100-SXM4-80GB": 624 / 2,
    "NVIDIA A100 80GB PCIe": 624 / 2,
    "NVIDIA A10": 250 / 2,
    "NVIDIA L4": 242 / 2,
    "NVIDIA L40S": 733 / 2,
    "NVIDIA H100 80GB HBM3": 1979 / 2,
    "NVIDIA H100 PCIe": 1513 / 2,
    "NVIDIA H100 NVL": 1671 / 2,
    "NVIDIA H200": 1979 / 2,
    "NVIDIA B200": 4500 / 2,
    "NVIDIA GeForce RTX 3090": 142 / 2,
    "NVIDIA GeForce RTX 4090": 330.4 / 2,
}
Series = dict[str, dict[LabelValues, Value]]


def point(flops: dict[str, float], seconds: float, gpus: list[str], dtype: str) -> Series:
    """Return the series of process p, which has memory on these GPUs."""
    build = ROWS["torch_build_info"].labels
    return {
        "torch_process_info": {tuple("p" if n == "process" else "" for n in ROWS["torch_process_info"].labels): 1},
        "torch_build_info": {tuple({"process": "p", "matmul_dtype": dtype}.get(n, "") for n in build): 1},
        "torch_device_info": {("p", f"GPU-{i}", str(i), "", name): 1 for i, name in enumerate([*gpus, "unused"])},
        "torch_memory_allocated_bytes": {("p", f"GPU-{i}"): 1e9 for i in range(len(gpus))},
        "torch_model_flops_total": {("p", source): count for source, count in flops.items()},
        "torch_step_duration_seconds": {("p",): HistogramValue((1,), seconds)},
    }


def mfu(*points: tuple[float, Series]) -> float | None:
    """Return the ratio over points, each with its time."""
    window = Window()
    for time, series in points:
        families = tuple(Family(ROWS[name], tuple(values.items())) for name, values in series.items())
        window.add(node_of([Section("test", families)], monotonic=time))
    return model_flops_utilization(window, "p")


@seeds(range(40))
def test_drawn_trainings(seed: int) -> None:
    draw = random.Random(seed)
    dtype = draw.choice(["bfloat16", "float16"])
    names = [name for name in GPUS if dtype == "float16" or "Tesla" not in name]
    gpus = [draw.choice(names)] * draw.choice([1, 1, 2, 8])
    mean, per_step = draw.choice([0.02, 0.3, 2.0, 14.0]), draw.uniform(0.01, 0.9)
    per_step *= mean * sum(GPUS[name] for name in gpus) * 1e12
    ends, now = [0.0], 0.0
    while now < 90:
        now += mean * draw.uniform(0.7, 1.3)
        ends.append(now)
    # The process sends its sums at a step, once a second at most; a tick reads the last message.
    sent = [0]
    for number, end in enumerate(ends):
        if end - ends[sent[-1]] >= 1:
            sent.append(number)
    ticks = [20.0]
    while ticks[-1] < 80:
        ticks.append(ticks[-1] + draw.choice([1.0, 2.0, 5.0]))
    read = [max(number for number in sent if ends[number] <= tick) for tick in ticks]
    points = [
        (tick, point({"stated": number * per_step}, ends[number], gpus, dtype))
        for tick, number in zip(ticks, read, strict=True)
    ]
    first = max(0, next(i for i, tick in enumerate(ticks) if tick >= ticks[-1] - 60) - 1)
    steps = ends[read[first] : read[-1] + 1]
    by_hand = per_step * (len(steps) - 1) / (steps[-1] - steps[0]) / sum(GPUS[name] * 1e12 for name in gpus)
    assert mfu(*points) == pytest.approx(by_hand, rel=0.02)


A100 = "NVIDIA A100-SXM4-80GB"


def test_what_is_not_known_is_absent() -> None:
    cases: list[tuple[list[str], str, float | None]] = [
        ([A100], "bfloat16", 0.5),
        ([A100], "tf32", 1.0),
        ([A100] * 2, "bfloat16", 0.25),
        ([A100], "float32", None),  # eight times the peak
        ([A100, "NVIDIA A100-SXM4-80GB MIG 1g.10gb"], "bfloat16", None),
        (["NVIDIA A10G"], "bfloat16", None),
        (["NVIDIA GeForce RTX 3080"], "bfloat16", None),
        (["Tesla T4"], "bfloat16", None),
        ([A100], "", None),
        ([A100], "float64", None),
        ([], "bfloat16", None),
    ]
    for gpus, dtype, expected in cases:
        first, last = (point({"stated": 156e12 * second}, second, gpus, dtype) for second in (0.0, 10.0))
        assert mfu((0.0, first), (10.0, last)) == (None if expected is None else pytest.approx(expected)), (gpus, dtype)


def test_without_steps_or_with_two_sources_it_is_absent() -> None:
    one, both = {"counted": 1e14}, {"counted": 2e14, "stated": 1e14}
    assert mfu((0.0, point(one, 5.0, [A100], "tf32")), (5.0, point(one, 5.0, [A100], "tf32"))) is None
    changed = (10.0, point(both, 9.0, [A100], "tf32"))
    assert mfu((0.0, point({**one, "stated": 0.0}, 5.0, [A100], "tf32")), changed) is None
    assert mfu((0.0, point({**both, "stated": 0.0}, 5.0, [A100], "tf32")), changed) is not None


@pytest.mark.parametrize("scenario", ["healthy", "starved"])
def test_a_simulated_model_has_the_load_of_the_tensor_cores(scenario: str, tmp_path: Path) -> None:
    # The simulated hook states the FLOPs of tensor cores at the peak of the GPU, for the time in which GPM sees them.
    daemon = VirtualDaemon(load_scenario(scenario), tmp_path)
    for _ in range(100):
        snapshot = daemon.second()
    found = {family.metric.name: family.samples for section in snapshot.sections for family in section.families}
    active = [value for _, value in found["gpu_tensor_active_ratio"]]
    ratios = [value for _, value in found["training_mfu_ratio"]]
    assert ratios == pytest.approx(active, rel=0.02)


def test_the_rates_are_those_without_sparsity() -> None:
    found = {name: peak(name, "float16" if "Tesla" in name else "bfloat16") for name in GPUS}
    assert found == {name: pytest.approx(rate * 1e12, rel=0.02) for name, rate in GPUS.items()}


# FLOP of a multiprocessor in a clock by dtype (float32, tf32, bfloat16 and float16), as the architectures define them.
# Tensor cores of GeForce, and of the L40, add up in float32 at half the rate.
VOLTA, GA100, GA10X, ADA = (128, 0, 1024), (128, 1024, 2048), (256, 512, 1024), (256, 512, 1024)
GEFORCE, HOPPER = (256, 256, 512), (256, 2048, 4096)
# Multiprocessors, and GHz at boost: of float32, and of tensor cores where it is another one. The B200's are not public.
MADE = {
    "Tesla V100-SXM2-16GB": (VOLTA, 80, 1.53, 1.53),
    "Tesla V100-PCIE-16GB": (VOLTA, 80, 1.38, 1.38),
    "Tesla V100S-PCIE-32GB": (VOLTA, 80, 1.597, 1.597),
    "Tesla T4": (VOLTA, 40, 1.59, 1.59),
    "NVIDIA A100-SXM4-40GB": (GA100, 108, 1.41, 1.41),
    "NVIDIA A30": (GA100, 56, 1.44, 1.44),
    "NVIDIA A10": (GA10X, 72, 1.695, 1.695),
    "NVIDIA A40": (GA10X, 84, 1.74, 1.74),
    "NVIDIA RTX A6000": (GA10X, 84, 1.8, 1.8),
    "NVIDIA L4": (ADA, 58, 2.04, 2.04),
    "NVIDIA L40": (GEFORCE, 142, 2.49, 2.49),
    "NVIDIA L40S": (ADA, 142, 2.52, 2.52),
    "NVIDIA H100 80GB HBM3": (HOPPER, 132, 1.98, 1.83),
    "NVIDIA H100 PCIe": (HOPPER, 114, 1.755, 1.62),
    "NVIDIA H100 NVL": (HOPPER, 132, 1.785, 1.545),
    "NVIDIA H200": (HOPPER, 132, 1.98, 1.83),
    "NVIDIA H200 NVL": (HOPPER, 132, 1.785, 1.545),
    "NVIDIA GH200 480GB": (HOPPER, 132, 1.98, 1.83),
    "NVIDIA GeForce RTX 3090": (GEFORCE, 82, 1.695, 1.695),
    "NVIDIA GeForce RTX 3070": (GEFORCE, 46, 1.725, 1.725),
    "NVIDIA GeForce RTX 4090": (GEFORCE, 128, 2.52, 2.52),
    "NVIDIA GeForce RTX 4080": (GEFORCE, 76, 2.505, 2.505),
    "NVIDIA GeForce RTX 4070 Ti": (GEFORCE, 60, 2.61, 2.61),
    "NVIDIA GeForce RTX 5090": (GEFORCE, 170, 2.407, 2.407),
}


def test_the_rates_follow_from_multiprocessors_and_clock() -> None:
    for name, ((float32, tf32, float16), count, clock, tensor_clock) in MADE.items():
        assert peak(name, "float32") == pytest.approx(float32 * count * clock * 1e9, rel=0.015), name
        assert peak(name, "float16") == pytest.approx(float16 * count * tensor_clock * 1e9, rel=0.015), name
        assert peak(name, "bfloat16") == (peak(name, "float16") if tf32 else None), name
        rate = tf32 * count * tensor_clock * 1e9
        assert peak(name, "tf32") == (pytest.approx(rate, rel=0.015) if tf32 else None), name


def test_each_rate_but_one_is_computed() -> None:
    computed = {entry.name for name in MADE for entry in PEAKS if peak(name, "float32") and entry.matches(name)}

    assert {entry.name for entry in PEAKS} - computed == {"B200"}


def test_the_table_is_plausible() -> None:
    for entry in PEAKS:
        rates = [getattr(entry, dtype) for dtype in DTYPES]
        assert rates == sorted(rates, key=lambda rate: rate or 0) or entry.bfloat16 is None, entry
        assert entry.bfloat16 in (None, entry.float16), entry
        # Tensor cores multiply float16 at least twice as fast as tf32.
        assert entry.tf32 is None or entry.float16 is None or entry.float16 >= 1.95 * entry.tf32, entry


def test_the_speedup_of_tensor_cores() -> None:
    ratios = {
        "NVIDIA H100 80GB HBM3": 989.5 / 67,
        "Tesla V100-SXM2-16GB": 125 / 15.7,
        "NVIDIA GeForce RTX 4090": 2.0,
        "NVIDIA Unheard-of 1": 30.0,  # that of a B200, the largest
    }
    assert {name: tensor_speedup(name) for name in ratios} == pytest.approx(ratios)
