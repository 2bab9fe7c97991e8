"""The diagnosis of loaders of simulated trainings, through the collectors: drawn pipelines, of which the simulator
knows the step with any number of workers.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.simulation import Moment, moments, scenario

from gpugauge.node.node import Diagnosis
from gpugauge.simulator.device.pipeline import EPOCH, Pipeline, observe
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.verdict import loaders

SECONDS = 100
GPUS = 16
MOST = 200  # workers that are tried
FEW, MANY = 16, 64  # docs/verdict.md: so many may be recommended to any process, and no more
SEEDS = range(int(os.environ.get("GPUGAUGE_DRAWN_LOADERS", "4")))


def draw(d: random.Random) -> Pipeline:
    """Return a training with a drawn loader: what limits it is not chosen, but follows."""
    kernels = 10 ** d.uniform(-1.7, -0.5)
    workers = d.choice([0, 1, 2, 3, 4, 6, 8, 12])
    p = Pipeline(
        kernels=kernels,
        host=kernels * d.uniform(0.1, 0.9),
        load=kernels * max(1, workers) * 10 ** d.uniform(-0.6, 0.8),
        storage=d.choice([0.0, 0.0, d.uniform(0.0, 0.4), d.uniform(0.6, 0.99)]),
        workers=workers,
        cores=d.choice([None, 1, 2, 4, 8, 16, 64]),
        copy=kernels * d.uniform(0.0, 0.05),
    )
    kind = d.random()
    if workers >= 2 and kind < 0.12:
        return replace(p, straggler=d.uniform(1.8, 5.0))
    if workers and kind < 0.24:
        return replace(p, restart=EPOCH * p.step * d.uniform(0.02, 1.0))
    return p


def trainings(pipelines: list[Pipeline]) -> str:
    """Return a scenario with one GPU per pipeline; pids begin with 100."""
    lines = [f"gpus: {{model: h100, count: {len(pipelines)}}}", "processes:"]
    for i, pipeline in enumerate(pipelines):
        plain = {name: value for name, value in asdict(pipeline).items() if value != getattr(Pipeline(), name)}
        keys = ", ".join(f"{name}: {value!r}" for name, value in plain.items())
        lines.append(f"  - {{pid: {100 + i}, gpus: [{i}], memory: 9GiB, cgroup: /job{i}, pipeline: {{{keys}}}}}")
    return "\n".join(lines)


def diagnoses(found: Moment) -> dict[int, Diagnosis]:
    """Return the exported diagnosis by pid."""
    pids = {labels[0]: int(labels[1]) for labels in found.samples["torch_process_info"]}
    values = {
        name: {pids[process]: value for (process,), value in found.samples.get(f"training_loader_{name}", {}).items()}
        for name in ("workers_recommended", "expected_speedup_ratio", "expected_speedup_lower_ratio")
    }
    return {
        (pid := pids[process]): Diagnosis(reason, *(of.get(pid) for of in values.values()))  # type: ignore[arg-type]  # workers are a whole number
        for process, reason in found.samples.get("training_loader_limited_by", {})
    }


def problems(p: Pipeline, found: Diagnosis | None) -> Iterator[str]:
    """Yield what is wrong with a diagnosis, by the steps of the pipeline with other workers."""
    exposed = observe(p).data_wait_exposed
    if found is None:
        best = min(replace(p, workers=number).step for number in range(1, MOST))
        # Less than a tenth more speed is no advice; a slow worker is not known at first.
        if exposed > 1.2 * loaders.LEAST and p.straggler == 1.0 and best < 0.88 * p.step:
            yield f"no diagnosis, {exposed:.2f} of a step is a wait"
    elif exposed < 0.8 * loaders.LEAST:
        yield "a diagnosis without a wait"
    elif found.reason == loaders.SLOW_WORKER:
        if p.straggler == 1.0:
            yield "no worker is slow"
    elif p.straggler > 1.0:
        # The workers can be compared later: until then the CPUs can be named, if they are the limit, too.
        if found.reason != loaders.TOO_FEW_CPUS or p.cpu_interval < 0.9 * p.step:
            yield "one worker is slow"
    elif found.reason == loaders.WORKER_START:
        true = p.step / replace(p, restart=0.0).step
        if not 0.9 < (found.speedup or 0.0) / true < 1.1:
            yield f"a start of {p.restart:.1f} s takes {true:.2f}"
    else:
        yield from wrong_number(p, found)


def wrong_number(p: Pipeline, found: Diagnosis) -> Iterator[str]:
    """Yield what is wrong with a number of workers."""
    if found.workers is None or found.speedup is None or found.lower is None:
        yield "no number"
        return
    steps = {number: replace(p, workers=number).step for number in range(1, MOST)}
    best = min(step for number, step in steps.items() if number <= max(p.workers, allowed(p)))
    needed = min(number for number, step in steps.items() if step <= 1.01 * best)
    after = steps[found.workers] if found.workers else p.step
    if after > 1.1 * best:
        yield f"{found.workers} workers: {after:.3f} s, {needed}: {best:.3f} s"
    if found.workers > max(p.workers, math.ceil(1.15 * needed) + 1):
        yield f"{needed} workers are enough"
    if not 0.9 < found.speedup / (p.step / after) < 1.1 or found.lower > 1.1 * p.step / after:
        yield f"true factor {p.step / after:.2f}"
    if found.reason == loaders.SLOW_BATCHES:
        ideal = min(number for number, step in steps.items() if step <= 1.01 * min(steps.values()))
        if found.workers not in {p.workers, allowed(p)} or ideal < 0.85 * allowed(p):
            yield f"{allowed(p)} are allowed, {ideal} needed"
    else:
        yield from wrong_reason(p, found)


def allowed(p: Pipeline) -> int:
    """Return the largest number of workers that may be recommended."""
    return min(MANY, max(FEW, 2 * p.cores)) if p.cores else MANY


def wrong_reason(p: Pipeline, found: Diagnosis) -> Iterator[str]:
    """Yield what is wrong with the reason of a number of workers."""
    limits = (loaders.TOO_FEW_CPUS,) if found.workers == p.workers else (loaders.TOO_FEW_WORKERS, loaders.STORAGE)
    if p.workers == 0 and found.workers:
        limits = (loaders.TRAINING_THREAD, loaders.STORAGE)
    if found.reason not in limits or (found.reason == loaders.STORAGE) != (
        p.storage > 0.5 and (found.workers or 0) > p.workers
    ):
        yield "the reason"


@pytest.mark.everything
@pytest.mark.timeout(120 * len(SEEDS))  # all seeds are one test
@seeds(SEEDS)
def test_drawn_loaders_are_told_what_they_need(seed: int, tmp_path: Path) -> None:
    d = random.Random(seed)
    drawn = [draw(d) for _ in range(GPUS)]
    *_, last = moments(scenario(trainings(drawn)), tmp_path, SECONDS)
    found = diagnoses(last)

    wrong = [
        f"{text}: {p}, {found.get(100 + i)}" for i, p in enumerate(drawn) for text in problems(p, found.get(100 + i))
    ]
    assert not wrong, "\n".join(wrong)
    assert {diagnosis.reason for diagnosis in found.values()} - {loaders.TOO_FEW_CPUS}


@pytest.mark.everything
def test_the_scenario_of_loaders_shows_what_it_says(tmp_path: Path) -> None:
    *_, last = moments(load_scenario("loaders"), tmp_path, SECONDS)

    assert {pid: (found.reason, found.workers) for pid, found in diagnoses(last).items()} == {
        6001: (loaders.TOO_FEW_WORKERS, 7),
        6002: (loaders.TRAINING_THREAD, 3),
        6003: (loaders.STORAGE, 18),
        6004: (loaders.TOO_FEW_CPUS, 4),
        6005: (loaders.TOO_FEW_CPUS, 4),
        6006: (loaders.SLOW_WORKER, None),
        6007: (loaders.WORKER_START, 4),
    }
