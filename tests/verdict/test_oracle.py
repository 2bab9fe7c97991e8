import random
from collections.abc import Callable

import pytest

from gpugauge.simulator.device.pipeline import Pipeline, observe, speedups, true_cause
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.judge import judge
from tests.verdict.oracle import evidence, random_pipeline, right, without_counters


# Without performance counters fewer causes are named, with the same precision.
@pytest.mark.parametrize("seed", [20261121, 10, 11, 12])
@pytest.mark.parametrize(("known", "least"), [(lambda e: e, 600), (without_counters, 500)], ids=["all", "no counters"])
def test_95_percent_of_the_named_causes_are_correct(
    known: Callable[[Evidence], Evidence], least: int, seed: int
) -> None:
    r = random.Random(seed)
    judged = [(p, judge(known(evidence(p))).limited_by) for p in (random_pipeline(r) for _ in range(1000))]
    named = [(p, cause) for p, cause in judged if cause and cause != "unknown"]
    wrong = [(p, cause) for p, cause in named if not right(p, cause)]

    assert len(named) > least
    assert len(wrong) / len(named) <= 0.05


def test_healthy_pipelines_have_no_cause() -> None:
    r = random.Random(7)
    pipelines = [p for p in (random_pipeline(r) for _ in range(3000)) if max(speedups(p).values()) < 1.02]
    named = [p for p in pipelines if judge(evidence(p)).limited_by]

    assert len(pipelines) > 300
    assert len(named) / len(pipelines) < 0.02


def test_oracle_names_the_planted_cause() -> None:
    assert true_cause(Pipeline()) is None
    assert true_cause(Pipeline(load=2.0)) == "data_loading"
    assert true_cause(Pipeline(host=0.5)) == "host_bound"
    assert true_cause(Pipeline(peer=0.4, world_size=8)) == "waiting_for_peers"


def test_observation_follows_from_the_pipeline() -> None:
    healthy, starved = observe(Pipeline()), observe(Pipeline(load=2.0))

    assert (healthy.busy, healthy.data_wait) == (1.0, 0.0)
    assert abs(starved.busy - 0.2) < 1e-9  # 0.1 s of kernels in a step of 2 s by four workers
    assert abs(starved.data_wait_exposed - 0.8) < 1e-9
