"""The diagnosis of loaders: drawn pipelines that run again with the recommended number of workers."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tests.drawn import seeds

from gpugauge.node.node import Diagnosis
from gpugauge.verdict import loaders
from gpugauge.verdict.loaders import Load, diagnose
from qa.worlds.loaderpipeline import Figures, Pipeline

SEEDS = range(40)


def load(pipeline: Pipeline, found: Figures) -> Load:
    """Return what the hook and the daemon measure of a pipeline."""
    wait = found.wait if pipeline.workers else found.wait - found.queued
    return Load(
        workers=pipeline.workers,
        own=found.step - found.wait - found.delayed,
        wait=max(0.0, wait),
        start=0.0,
        cpu=found.cpu,
        storage=found.storage,
        blocked=found.sleep,
        queued=found.queued,
        trainer_cpu=pipeline.own * pipeline.busy,
        cpus=pipeline.cpus,
        slowest=found.slowest,
    )


def draw(seed: int, **fixed: float) -> Pipeline:
    d = random.Random(seed)
    values: dict[str, float] = {
        "workers": d.choice([0, 1, 2, 3, 4, 6, 8]),
        "own": d.uniform(0.01, 0.2),
        "busy": d.uniform(0.0, 0.5),
        "jitter": d.uniform(0.0, 0.4),
        "seed": seed,
    }
    values.update(fixed)
    return Pipeline(**values)  # type: ignore[arg-type]  # some are whole numbers


def removed(before: Figures, after: Figures) -> float:
    return 1.0 - after.wait / before.wait


@pytest.mark.parametrize("part", ["sleep", "storage"])
@seeds(SEEDS)
def test_the_number_removes_the_waits_that_several_workers_can_share(seed: int, part: str) -> None:
    pipeline = draw(seed)
    seconds = pipeline.own * max(1, pipeline.workers) * random.Random(-seed).uniform(1.3, 5.0)
    planted = draw(seed, **{part: seconds}, cpu=0.05 * seconds)
    before = planted.run()
    found = diagnose(load(planted, before))

    assert found is not None
    in_thread = loaders.TRAINING_THREAD if planted.workers == 0 else loaders.TOO_FEW_WORKERS
    assert found.reason == (loaders.STORAGE if part == "storage" else in_thread)
    assert found.workers is not None
    assert found.speedup is not None
    assert found.lower is not None
    after = planted.with_workers(found.workers).run()
    assert removed(before, after) >= 0.8
    assert found.lower <= before.step / after.step <= 1.1 * found.speedup
    assert planted.with_workers(found.workers - 1).run().step >= 0.98 * after.step


@seeds(SEEDS)
def test_the_number_fits_the_cpus(seed: int) -> None:
    d = random.Random(1000 + seed)
    cpus = d.choice([1, 2, 4, 8])
    pipeline = draw(seed, cpus=cpus, cpu=d.uniform(0.5, 4.0) * draw(seed).own)
    before = pipeline.run()
    found = diagnose(load(pipeline, before))

    others = [pipeline.with_workers(workers).run() for workers in range(1, 2 * cpus + 2)]
    best = min(others, key=lambda one: one.step)
    if found is None or found.workers is None:
        assert before.step <= 1.2 * best.step
        return
    after = pipeline.with_workers(found.workers).run()
    assert after.step <= 1.15 * best.step
    if found.workers == pipeline.workers:
        assert found.reason == loaders.TOO_FEW_CPUS
        assert found.speedup == 1.0


@seeds(SEEDS)
def test_of_saturated_storage_the_bounds_contain_the_truth(seed: int) -> None:
    pipeline = draw(seed, servers=1, storage=draw(seed).own * random.Random(-seed).uniform(1.3, 4.0))
    before = pipeline.run(600)
    found = diagnose(load(pipeline, before))

    assert found is not None
    assert found.workers is not None
    assert found.reason == loaders.STORAGE
    after = pipeline.with_workers(found.workers).run(600)
    assert (found.lower or 0.0) <= 1.05 * before.step / after.step
    assert before.step / after.step <= 1.03 * (found.speedup or 0.0)


@seeds(SEEDS)
def test_a_loader_that_keeps_up_has_no_diagnosis(seed: int) -> None:
    pipeline = draw(seed, workers=random.Random(seed).randint(1, 8), sleep=0.6 * draw(seed).own)

    assert diagnose(load(pipeline, pipeline.run())) is None


@seeds(SEEDS)
def test_one_slow_worker_is_found_and_no_equal_ones(seed: int) -> None:
    d = random.Random(seed)
    workers = d.randint(2, 6)
    slow = d.uniform(1.8, 4.0)
    sleep = draw(seed).own * workers * 1.2
    found = diagnose(load(p := draw(seed, workers=workers, sleep=sleep, slow=slow), p.run()))
    equal = diagnose(load(q := draw(seed, workers=workers, sleep=2 * sleep), q.run()))

    assert found == Diagnosis(loaders.SLOW_WORKER)
    assert equal is not None
    assert equal.reason == loaders.TOO_FEW_WORKERS


@seeds(SEEDS)
def test_the_number_can_be_set_on_this_host(seed: int) -> None:
    d = random.Random(seed)
    cpus = d.choice([None, 1, 2, 2.5, 8, 24, 96])
    present, own = d.choice([0, 1, 4, 15, 16, 100]), 10 ** d.uniform(-3, -1)
    batch = own * max(1, present) * 10 ** d.uniform(0.3, 3)
    storage = d.choice([0.0, 0.9]) * batch
    slow = Load(
        present,
        own,
        wait=batch / max(1, present) - (own if present else 0.0),
        start=0.0,
        cpu=0.0,
        storage=storage,
        blocked=batch - storage,
        cpus=cpus,
        slowest=1.0 if present > 1 else None,
    )
    found = diagnose(slow)
    most = 64 if cpus is None else min(64, max(16, int(2 * cpus)))

    assert found is not None
    assert found.workers is not None
    assert found.speedup is not None
    assert found.workers <= max(present, most)
    # What the workers deliver at most; the training alone is never slower.
    assert found.speedup <= 1.01 * slow.time / max(own, batch / found.workers if found.workers else slow.time)
    if batch / own > 1.2 * max(present, most):
        assert found.reason == loaders.SLOW_BATCHES
        assert (found.workers == present) == (most < 1.1 * present)


@seeds(SEEDS)
def test_noise_of_the_waits_does_not_change_the_number_again_and_again(seed: int) -> None:
    d = random.Random(seed)
    own, workers = d.uniform(0.01, 0.1), d.choice([0, 1, 2, 4])
    batch = own * max(1, workers) * 10 ** d.uniform(0.2, 3)
    found: Diagnosis | None = None
    numbers = []
    for _ in range(300):
        busy = batch * d.uniform(0.8, 1.2)
        wait = busy / max(1, workers) - (own if workers else 0.0)
        slow = Load(workers, own, wait, start=0.0, cpu=0.0, blocked=busy, cpus=2, slowest=1.0 if workers > 1 else None)
        found = diagnose(slow, found)
        assert found is not None
        numbers.append(found.workers)

    changes = sum(one != other for one, other in pairwise(numbers[60:]))
    assert changes <= 2
