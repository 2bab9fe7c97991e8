"""The wait of a drawn training is that of the clock where nothing disturbed it, and computed elsewhere."""

from __future__ import annotations

import random

import pytest

from qa.loaders.measure import PREFETCH, Step, disturbance, measured

_WARM = 40  # steps that are not measured


def run(d: random.Random, workers: int, loading: float, own: float, disturbed: tuple[int, int]) -> list[Step]:
    """Return 400 steps of a training; from one step of `disturbed` to the other each thread waits half of its time
    for a CPU. Each worker has a clock of its own, and loads its next batch when its second last one was taken.
    """
    steps, free, taken, now, cpu = list[Step](), [0.0] * max(1, workers), list[float](), 0.0, 0.0
    for number in range(-_WARM, 400):
        slowed = 2.0 if disturbed[0] <= number < disturbed[1] else 1.0
        alone, work = loading * d.uniform(0.9, 1.1), own * d.uniform(0.95, 1.05)
        if workers:
            worker, before = number % workers, number + _WARM - PREFETCH * workers
            begin = max(free[worker], taken[before] if before >= 0 else 0.0)
            free[worker] = begin + alone * slowed
            wait, delayed = max(0.0, free[worker] - now), 0.0
        else:
            wait, delayed = alone * slowed, alone * (slowed - 1.0)
        cpu += alone + work
        now += wait
        taken.append(now)
        now += work * slowed
        steps.append(Step(wait, alone * slowed, work * slowed, delayed, alone * (slowed - 1), work * (slowed - 1), cpu))
    return steps[_WARM:]


@pytest.mark.parametrize("seed", range(30))
def test_the_wait_is_that_of_the_undisturbed_training(seed: int) -> None:
    d = random.Random(seed)
    workers, own = d.choice([0, 1, 2, 4]), d.uniform(0.03, 0.1)
    loading = own * max(1, workers) * d.uniform(1.3, 3.0)
    true = loading if not workers else loading / workers - own
    begin = d.choice([0, 200])

    quiet = measured(run(d, workers, loading, own, (0, 0)), workers, 8)
    partly = measured(run(d, workers, loading, own, (begin, begin + 180)), workers, 8)
    never = measured(run(d, workers, loading, own, (0, 400)), workers, 8)

    assert [found.raw for found in (quiet, partly, never)] == [True, True, False]
    for found in (quiet, partly, never):
        assert found.wait == pytest.approx(true, rel=0.2, abs=0.05 * own)
    assert never.step > 1.8 * quiet.step


def test_on_one_cpu_the_rest_of_its_time_is_of_others() -> None:
    # Training and worker share the CPU, and each waits for the other.
    steps = [Step(0.06, 0.1, 0.04, 0.02, 0.04, 0.0, 0.1 * number) for number in range(100)]
    taken = [step._replace(cpu=0.8 * step.cpu) for step in steps]

    assert disturbance(steps, 1, 1) == pytest.approx(0.0, abs=0.001)
    assert disturbance(taken, 1, 1) == pytest.approx(0.2, abs=0.001)
    assert measured(steps, 1, 1).raw
    assert not measured(taken, 1, 1).raw


def test_a_short_run_is_not_judged_by_the_clock() -> None:
    steps = [Step(0.01, 0.05, 0.04, 0.0, 0.0, 0.0, 0.1 * number) for number in range(40)]

    assert not measured(steps, 2, 2).raw
