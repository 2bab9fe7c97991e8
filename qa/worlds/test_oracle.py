from collections.abc import Callable, Sequence

import pytest

from gpugauge.simulator.device.pipeline import Pipeline, observe
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.judge import judge
from qa.worlds.oracle import PUBLISHED_SEEDS, TUNING_SEEDS, Case, cases, right, without_counters
from qa.worlds.truth import true_cause


@pytest.fixture(scope="module")
def published() -> Sequence[tuple[Case, str | None]]:
    """Return pipelines that the thresholds were not chosen with, and their causes."""
    found = [case for seed in PUBLISHED_SEEDS for case in cases(seed, 250)]
    return [(case, true_cause(case.pipeline)) for case in found]


def names(
    published: Sequence[tuple[Case, str | None]], faults: int, known: Callable[[Evidence], Evidence] = lambda e: e
) -> list[tuple[Case, str]]:
    """Return the named causes of pipelines that have a cause."""
    judged = [(case, judge(known(case.evidence)).limited_by) for case, true in published if true]
    return [(case, named) for case, named in judged if case.faults == faults and named and named != "unknown"]


def share_right(found: Sequence[tuple[Case, str]]) -> float:
    return sum(right(case.pipeline, named) for case, named in found) / len(found)


@pytest.mark.parametrize(("faults", "least"), [(1, 0.97), (2, 0.94), (3, 0.92)])
def test_named_causes_are_correct(faults: int, least: float, published: Sequence[tuple[Case, str | None]]) -> None:
    found = names(published, faults)

    assert len(found) > 0.9 * sum(case.faults == faults and true is not None for case, true in published)
    assert share_right(found) >= least


@pytest.mark.everything
@pytest.mark.parametrize(("faults", "least"), [(1, 0.97), (2, 0.88)])
def test_named_causes_are_correct_without_performance_counters(
    faults: int, least: float, published: Sequence[tuple[Case, str | None]]
) -> None:
    assert share_right(names(published, faults, without_counters)) >= least


def test_healthy_pipelines_have_no_cause(published: Sequence[tuple[Case, str | None]]) -> None:
    healthy = [judge(case.evidence).limited_by for case, true in published if not case.faults and not true]

    assert len(healthy) > 1000
    assert sum(named is not None for named in healthy) / len(healthy) <= 0.01


def test_seeds_of_tuning_and_of_the_documents_differ() -> None:
    assert not set(TUNING_SEEDS) & set(PUBLISHED_SEEDS)


@pytest.mark.parametrize(
    ("pipeline", "named", "correct"),
    [
        (Pipeline(), "host_bound", False),  # healthy: each name is wrong
        (Pipeline(load=0.42), "data_loading", False),  # 5 % are no cause
        (Pipeline(load=2.0), "data_loading", True),
        (Pipeline(load=2.0), "host_bound", False),
        (Pipeline(load=2.0, host=0.4), "data_loading", True),
        (Pipeline(load=2.0, host=0.5), "host_bound", False),  # none of the two saves time alone
        (Pipeline(load=0.3, cpu_quota=0.1), "cpu_limited", True),
        (Pipeline(load=0.3, cpu_quota=0.1), "data_loading", False),  # then the host is slow
        (Pipeline(retries=0.01), "memory_pressure", False),
        (Pipeline(retries=1.0), "memory_pressure", True),
        (Pipeline(clock=0.5, other=0.5), "throttled", True),  # saves as much as the other
    ],
)
def test_right(pipeline: Pipeline, named: str, correct: bool) -> None:
    assert right(pipeline, named) is correct


def test_oracle_names_the_planted_cause() -> None:
    assert true_cause(Pipeline()) is None
    assert true_cause(Pipeline(load=2.0)) == "data_loading"
    assert true_cause(Pipeline(host=0.5)) == "host_bound"
    assert true_cause(Pipeline(peer=0.4, world_size=8)) == "waiting_for_peers"


def test_observation_follows_from_the_pipeline() -> None:
    healthy, starved = observe(Pipeline()), observe(Pipeline(load=2.0))

    assert (healthy.own_busy, healthy.data_wait) == (1.0, 0.0)
    assert abs(starved.own_busy - 0.2) < 1e-9  # 0.1 s of kernels in a step of 2 s by four workers
    assert abs(starved.data_wait_exposed - 0.8) < 1e-9


def test_the_gpu_is_idle_while_the_allocator_retries() -> None:
    pressed = observe(Pipeline(retries=0.5, cached=100, device_call=0.001))  # 0.1 s in every second step

    assert pressed.step == pytest.approx(0.2)
    assert pressed.own_busy == pytest.approx(0.5)
    assert pressed.retries == pytest.approx(2.5)
    assert pressed.device_calls == pytest.approx(250.0)
