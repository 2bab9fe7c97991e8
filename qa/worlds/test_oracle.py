import pytest

from gpugauge.simulator.device.pipeline import Pipeline, observe
from qa.worlds.oracle import PUBLISHED_SEEDS, TUNING_SEEDS, right
from qa.worlds.truth import true_cause


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
