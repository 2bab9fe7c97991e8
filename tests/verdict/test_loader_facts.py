"""The loading of a training from exported counters: drawn trainings, whose counters grow as their batches do."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from qa.worlds.scraped import node_of

from gpugauge import catalog
from gpugauge.metric import Family
from gpugauge.node.window import Window
from gpugauge.snapshot import Section
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.loader_facts import load
from gpugauge.verdict.loaders import Load
from tests.drawn import seeds

ROWS = {row.name: row for row in catalog.metrics()}
TICK, SPAN = 5.0, 60.0
Series = dict[tuple[str, str], float]


def section(series: Mapping[tuple[str, str], float], workers: str) -> Section:
    """Return the series of process p. A key has the name and the value of the own label."""
    families: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for (name, label), value in series.items():
        own = (label,) if label else ()
        families.setdefault(name, []).append((("p", *own), value))
    info = ROWS["torch_loader_info"]
    if workers:
        labels = {"process": "p", "workers": workers}
        families["torch_loader_info"] = [(tuple(labels.get(label, "") for label in info.labels), 1)]
    process = ROWS["torch_process_info"]
    families["torch_process_info"] = [(("p", *[""] * (len(process.labels) - 1)), 1)]
    return Section("test", tuple(Family(ROWS[name], tuple(samples)) for name, samples in families.items()))


def growing(per_second: Series, still: Series, workers: str, found: Evidence | None = None) -> Load | None:
    """Return the loading of a training whose counters grow by so much in each second."""
    window, ticks = Window(), int(SPAN / TICK)
    for tick in range(ticks + 1):
        counters = {key: 7.0 + tick * TICK * rate for key, rate in per_second.items()}
        window.add(node_of([section({**counters, **still}, workers)], monotonic=tick * TICK))
    return load(window, "p", found or Evidence(SPAN, inside=True))


def counters(d: random.Random, truth: Load, evaluating: float) -> Series:
    """Return the growth of the counters of a training that evaluates for a share of its time."""
    step = truth.own + truth.wait + truth.start
    rate = (1.0 - evaluating) / step
    queued = truth.queued
    parts = {"cpu": truth.cpu, "threads": truth.threads, "storage": truth.storage, "blocked": truth.blocked}
    parts["runqueue"] = queued
    measured = d.uniform(0.8, 1.0)  # the first ones of workers are not
    waits = truth.wait + truth.start + (0.0 if truth.workers else queued)
    return {
        ("torch_phase_seconds_total", "training"): rate * truth.own,
        ("torch_phase_seconds_total", "loading"): rate * waits + 0.1 * evaluating,
        ("torch_phase_seconds_total", "evaluating"): 0.9 * evaluating,
        ("torch_data_wait_seconds_total", "training"): rate * waits,
        ("torch_data_wait_seconds_total", "evaluating"): 0.1 * evaluating,
        ("torch_loader_batches_total", ""): rate,
        ("torch_loader_measured_batches_total", ""): measured * rate,
        ("torch_loader_start_seconds_total", ""): rate * truth.start,
        ("torch_loader_epochs_total", ""): 0.0,
        ("torch_process_cpu_seconds_total", ""): rate * (truth.trainer_cpu + (0.0 if truth.workers else truth.cpu)),
        ("torch_thread_runqueue_seconds_total", ""): 0.0 if truth.workers else rate * queued,
        **{("torch_loader_seconds_total", part): measured * rate * seconds for part, seconds in parts.items()},
    }


@seeds(range(60))
def test_a_drawn_training_is_read_from_its_counters(seed: int) -> None:
    d = random.Random(seed)
    workers = d.choice([0, 1, 2, 8])
    truth = Load(
        workers=workers,
        own=d.uniform(0.01, 0.5),
        wait=d.uniform(0.0, 0.5),
        start=d.uniform(0.0, 0.1) if workers else 0.0,
        cpu=d.uniform(0.0, 0.2),
        threads=d.uniform(0.0, 0.1) if workers else 0.0,
        storage=d.choice([0.0, d.uniform(0.0, 0.5)]),
        blocked=d.choice([0.0, d.uniform(0.0, 0.5)]),
        queued=d.uniform(0.0, 0.1) if workers else 0.0,
        trainer_cpu=d.uniform(0.0, 0.01),
    )
    evaluating = d.choice([0.0, 0.0, d.uniform(0.1, 0.5)])
    found = growing(counters(d, truth, evaluating), {}, str(workers))

    assert found is not None
    for name in ("workers", "own", "wait", "start", "cpu", "threads", "storage", "blocked", "queued"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.02, abs=1e-6), name
    assert found.known
    assert found.throttled == 0.0  # the evidence has no share
    assert found.trainer_cpu <= truth.trainer_cpu * 1.02 + 1e-6


BASE = Load(workers=2, own=0.1, wait=0.1, start=0.0, cpu=0.3, blocked=0.05, trainer_cpu=0.02)


def read(still: Series | None = None, found: Evidence | None = None, workers: str = "2", **changes: Any) -> Load | None:
    growth = counters(random.Random(1), BASE, 0.0)
    for name, rate in changes.items():
        growth[name, ""] = rate
    return growing(growth, still or {}, workers, found)


def test_the_cpus_of_a_process() -> None:
    cases: list[tuple[Series, float | None]] = [
        ({}, None),
        ({("torch_cpus", ""): 4.0}, 4.0),
        ({("gpu_process_affinity_cpus", ""): 16.0}, 16.0),
        ({("torch_cpus", ""): 4.0, ("gpu_process_affinity_cpus", ""): 16.0}, 4.0),
        # Four ranks share the quota of eight CPUs.
        ({("torch_cpus", ""): 4.0, ("gpu_process_affinity_cpus", ""): 16.0, ("gpu_process_cgroup_cpus", ""): 8.0}, 2.0),
        ({("gpu_process_affinity_cpus", ""): 16.0, ("gpu_process_cgroup_cpus", ""): 1.5}, 1.5),
    ]
    for still, cpus in cases:
        found = read(still)
        assert found is not None
        assert found.cpus == cpus, still


def test_the_memory_bounds_further_workers() -> None:
    available = {("gpu_process_memory_available_bytes", ""): 10e9}
    found = read({**available, ("torch_loader_worker_memory_bytes", ""): 2e9})
    unknown = read(available)

    assert found is not None
    assert unknown is not None
    assert (found.space, unknown.space) == (4, 29)


def test_on_a_gpu_only_exposed_waits_count() -> None:
    device = (DeviceEvidence(busy=0.7),)
    evidence = Evidence(SPAN, inside=True, data_wait=0.5, data_wait_exposed=0.3, devices=device)
    found = read(found=evidence)

    assert found is not None
    assert found.wait == pytest.approx(0.06)
    assert found.own == pytest.approx(0.14)


def test_waits_for_other_ranks_are_not_own_work() -> None:
    found = read(found=Evidence(SPAN, inside=True, local_work=0.75))

    assert found is not None
    assert found.own == pytest.approx(0.05)


def test_the_first_batch_of_an_epoch_is_waited_for_with_any_number() -> None:
    found = read(torch_loader_epochs_total=0.5)

    assert found is not None
    assert found.wait == pytest.approx(0.1 - 0.1 * 0.35)


def test_without_enough_batches_nothing_is_known() -> None:
    assert read(torch_loader_measured_batches_total=0.1) is None
    assert read(torch_loader_batches_total=0.0) is None
    unknown = read(workers="")
    assert unknown is not None
    assert (unknown.workers, unknown.known) == (0, False)


def test_long_waits_at_the_edges_of_the_window_do_not_hide_the_own_work() -> None:
    """The window has the end of one wait more than its time."""
    rate = 1 / 1.6
    series: Series = {
        ("torch_phase_seconds_total", "training"): 0.007 * rate,
        ("torch_phase_seconds_total", "loading"): 1.593 * rate,
        ("torch_data_wait_seconds_total", "training"): 1.62 * rate,
        ("torch_loader_batches_total", ""): rate,
        ("torch_loader_measured_batches_total", ""): rate,
        ("torch_loader_seconds_total", "blocked"): 1.6 * rate,
    }
    found = growing(series, {}, "0")

    assert found is not None
    assert found.own == pytest.approx(0.007)
