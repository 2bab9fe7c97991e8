import random

from gpugauge.driver.simulated.pipeline import Pipeline, observe, speedups, true_cause
from gpugauge.verdict.judge import judge
from tests.verdict.oracle import evidence, random_pipeline, right


def test_of_a_thousand_random_pipelines_95_in_100_named_causes_are_right() -> None:
    r = random.Random(20261121)
    pipelines = [random_pipeline(r) for _ in range(1000)]
    named = [(p, cause) for p in pipelines if (cause := judge(evidence(p)).limited_by)]
    wrong = [(p, cause) for p, cause in named if not right(p, cause)]

    assert len(named) > 600
    assert len(wrong) / len(named) <= 0.05


def test_healthy_pipelines_are_not_blamed() -> None:
    r = random.Random(7)
    pipelines = [p for p in (random_pipeline(r) for _ in range(3000)) if max(speedups(p).values()) < 1.02]
    blamed = [p for p in pipelines if judge(evidence(p)).limited_by]

    assert len(pipelines) > 300
    assert len(blamed) / len(pipelines) < 0.02


def test_oracle_names_what_was_broken() -> None:
    assert true_cause(Pipeline()) is None
    assert true_cause(Pipeline(load=2.0)) == "data_loading"
    assert true_cause(Pipeline(host=0.5)) == "host_bound"
    assert true_cause(Pipeline(peer=0.4, world_size=8)) == "waiting_for_peers"


def test_what_is_observed_follows_from_the_pipeline() -> None:
    healthy, starved = observe(Pipeline()), observe(Pipeline(load=2.0))

    assert (healthy.busy, healthy.data_wait) == (1.0, 0.0)
    assert abs(starved.busy - 0.2) < 1e-9  # 0.1 s of kernels in a step of 2 s by four workers
    assert abs(starved.data_wait_exposed - 0.8) < 1e-9
