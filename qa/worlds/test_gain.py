"""The expected gain, against the simulator's pipelines without the cause."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.drawn import seeds

from gpugauge.node.node import Diagnosis, Gain, Verdict
from gpugauge.simulator.device.pipeline import Pipeline
from gpugauge.verdict import causes
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.gain import LEAST, MOST_SPREAD, gains, most_gain, of_loader
from gpugauge.verdict.judge import judge
from qa.bench.gain import advised, bounded, published, quantile
from qa.worlds.oracle import GAIN_SEEDS, PUBLISHED_SEEDS, TUNING_SEEDS, cases, evidence, without_hook
from qa.worlds.truth import REMOVED, without

CAUSES = (*REMOVED, "underfilled", "precision_unused")
ALL = Verdict("training", "inside", dict.fromkeys(CAUSES, 0.5))


@pytest.mark.parametrize(
    ("pipeline", "cause", "after"),
    [
        (Pipeline(load=0.8), "data_loading", "gpu"),
        (Pipeline(load=0.8, host=0.15), "data_loading", "host_bound"),
        (Pipeline(load=0.15, workers=0), "data_loading", "gpu"),
        (Pipeline(host=0.2), "host_bound", "gpu"),
        (Pipeline(host=0.09, synchronises=True), "host_bound", "gpu"),
        (Pipeline(copy=0.1, pinned=False), "transfer", "gpu"),
        (Pipeline(peer=0.4, world_size=8), "waiting_for_peers", "gpu"),
        (Pipeline(clock=0.6), "throttled", "gpu"),
        (Pipeline(other=0.4), "contention", "gpu"),
        (Pipeline(precision_unused=True, tensor=0.0, tensor_speedup=2.5), "precision_unused", "gpu"),
        (Pipeline(fill=0.52), "underfilled", "gpu"),
        (Pipeline(cpu_quota=0.2), "cpu_limited", "gpu"),
        (Pipeline(load=0.3, cpu_quota=0.4), "cpu_limited", "gpu"),
        (Pipeline(paging=0.85), "memory_swap_io", "gpu"),
        (Pipeline(retries=1.0, cached=100, device_call=0.00045), "memory_pressure", "gpu"),
    ],
)
def test_the_removal_of_a_planted_fault(pipeline: Pipeline, cause: str, after: str) -> None:
    gain = gains(evidence(pipeline), ALL)[cause]

    assert gain.expected == pytest.approx(pipeline.step / without(pipeline, cause).step, rel=0.1)
    assert 1.0 <= gain.lower <= gain.expected <= gain.upper
    assert gain.upper <= MOST_SPREAD * gain.lower or cause == "precision_unused" or causes.CAUSES[cause].partly
    assert gain.lower == 1.0 or not causes.CAUSES[cause].partly
    assert gain.next == after


def test_a_network_that_is_not_slow_gains_what_ranks_that_are_not_slow_gain() -> None:
    peers = evidence(Pipeline(peer=0.4, world_size=8))
    slow = peers._replace(slow_network=True)
    network = ALL._replace(causes={"slow_network": 0.5, "host_bound": 0.5})

    assert gains(slow, network)["slow_network"] == gains(peers, ALL)["waiting_for_peers"]
    assert {gain.next for gain in gains(slow, network).values()} <= {"gpu", "slow_network"}


@pytest.mark.parametrize("speedup", [1.5, 2.0, 5.2, 14.0])
@pytest.mark.parametrize("host", [0.0, 0.02, 0.07])
def test_a_lower_precision_gains_within_the_peaks_of_the_gpu(speedup: float, host: float) -> None:
    pipeline = Pipeline(precision_unused=True, tensor=0.0, tensor_speedup=speedup, host=host, load=0.004)
    gain = gains(evidence(pipeline), ALL)["precision_unused"]

    assert gain.lower <= pipeline.step / without(pipeline, "precision_unused").step <= gain.upper


def test_a_gpu_without_faster_tensor_cores_has_a_narrow_bound() -> None:
    e = evidence(Pipeline(precision_unused=True, tensor=0.0))
    slower = e._replace(devices=tuple(device._replace(tensor_speedup=2.0) for device in e.devices))

    narrow = gains(slower, ALL)["precision_unused"]

    assert narrow.expected <= narrow.upper <= 2.0 < gains(e, ALL)["precision_unused"].upper


@pytest.mark.parametrize(("kernels", "copy"), [(0.6, 0.4), (0.5, 0.45), (0.5, 0.5), (0.8, 0.2)])
@pytest.mark.parametrize("speed", [8.0, 10.0, 15.8])
def test_copies_take_no_more_than_the_time_that_is_left(kernels: float, copy: float, speed: float) -> None:
    """At another speed than the assumed one, they seem to take longer than they do."""
    e = evidence(Pipeline(kernels=kernels, copy=copy, host=1.0 - kernels - copy, load=0.01, pinned=False))
    device = e.devices[0]._replace(transfer=min(1.0, copy * speed / 10.0))
    gain = gains(e._replace(devices=(device,)), ALL)["transfer"]

    assert gain.expected <= 1.02 / kernels


@pytest.mark.parametrize(("kernels", "copy"), [(0.6, 0.1), (0.8, 0.12)])
def test_the_host_of_a_training_that_copies_is_known(kernels: float, copy: float) -> None:
    pipeline = Pipeline(
        kernels=kernels,
        copy=copy,
        host=1.0 - kernels - copy,
        load=0.01,
        pinned=False,
        precision_unused=True,
        tensor=0.0,
    )
    gain = gains(evidence(pipeline), ALL)["precision_unused"]
    peak = replace(pipeline, tensor_speedup=989.5 / 67)

    assert gain.upper == pytest.approx(peak.step / without(peak, "precision_unused").step, rel=0.02)


def test_a_wait_that_hides_another_gains_the_difference_only() -> None:
    alone, hiding = (Pipeline(load=0.8, host=host) for host in (0.03, 0.18))

    assert gains(evidence(alone), ALL)["data_loading"].expected == pytest.approx(2.0)
    assert gains(evidence(hiding), ALL)["data_loading"].expected == pytest.approx(0.2 / 0.18, rel=0.01)
    assert "host_bound" not in gains(evidence(hiding), ALL)


@pytest.mark.parametrize(
    ("pipeline", "cause"),
    [
        (Pipeline(fill=0.4), "underfilled"),  # its spread is about as large as it may be
        (Pipeline(kernels=3.0, load=7.0, workers=0, host=0.05, synchronises=True), "data_loading"),  # two limits then
    ],
)
def test_a_gain_does_not_blink_while_shares_vary(pipeline: Pipeline, cause: str) -> None:
    chance, e, before = random.Random(1), evidence(pipeline), dict[str, Gain]()
    found: tuple[list[Gain | None], list[Gain | None]] = ([], [])
    for _ in range(40):
        wait, filled = (chance.uniform(0.9, 1.1) for _ in range(2))
        devices = tuple(device._replace(sm_active=(device.sm_active or 0.0) * filled) for device in e.devices)
        seen = e._replace(data_wait=(e.data_wait or 0.0) * wait, devices=devices)
        before = gains(seen, ALL, before)
        for those, one in zip(found, (gains(seen, ALL), before), strict=True):
            those.append(one.get(cause))
    changes = [sum(a != b for a, b in pairwise(gain and gain.next for gain in those)) for those in found]

    assert changes[0] > 8
    assert changes[1] <= 1


def test_a_healthy_run_gains_nothing() -> None:
    assert gains(evidence(Pipeline()), ALL) == {}


@pytest.mark.parametrize(
    ("pipeline", "cause"),
    [
        (Pipeline(fill=0.06), "underfilled"),  # whether the host keeps up with short kernels is not known
        (Pipeline(host=0.5, cpu_quota=0.05), "cpu_limited"),  # a tenth of an error is twice the rest
    ],
)
def test_a_gain_that_is_not_decided_is_absent(pipeline: Pipeline, cause: str) -> None:
    assert cause not in gains(evidence(pipeline), ALL)


@pytest.mark.parametrize(
    "changes", [{"window": 10.0}, {"steps": 0.0, "batches": 0.0}, {"devices": ()}, {"inside": False}]
)
def test_without_evidence_there_is_no_gain(changes: dict[str, object]) -> None:
    e = evidence(Pipeline(load=0.8))

    assert "data_loading" in gains(e, ALL)
    assert gains(e._replace(**changes), ALL) == {}  # type: ignore[arg-type]  # the keys are the fields' names


def test_without_the_hook_there_is_no_gain() -> None:
    e = without_hook(evidence(Pipeline(load=0.8)))

    assert gains(e, judge(e)) == {}


def test_only_causes_of_the_verdict_have_a_gain() -> None:
    e = evidence(Pipeline(load=0.8))

    assert gains(e, judge(e)).keys() == {"data_loading"}
    assert gains(e, judge(e)._replace(state="evaluating")) == {}


def test_several_gpus_gain_what_the_slowest_gains() -> None:
    fast, slow = (evidence(Pipeline(clock=clock)) for clock in (0.75, 0.7))
    alone = gains(fast, ALL)["throttled"]

    both = gains(fast._replace(devices=fast.devices + slow.devices), ALL)["throttled"]
    assert both.expected == alone.expected
    assert both.upper > alone.upper
    unthrottled = evidence(Pipeline()).devices
    assert "throttled" not in gains(fast._replace(devices=fast.devices + unthrottled), ALL)


def on_cpu(**shares: float) -> dict[str, Gain]:
    e = Evidence(60.0, inside=True, steps=100.0, loader_workers=2, world_size=2)
    return gains(e._replace(**shares), Verdict("training_on_cpu", "inside"))  # type: ignore[arg-type]  # as above


def test_a_training_on_the_cpu() -> None:
    assert on_cpu(data_wait=0.6)["data_loading"].expected == pytest.approx(2.5)
    assert on_cpu(data_wait=0.6)["data_loading"].next == "cpu"
    assert on_cpu(local_work=0.5)["waiting_for_peers"].expected == pytest.approx(2.0)
    assert on_cpu(cpu_throttled=0.5)["cpu_limited"].expected == pytest.approx(2.0)
    assert on_cpu() == {}


def test_time_without_steps_remains() -> None:
    half = on_cpu(data_wait=0.6, paused=0.5)["data_loading"]

    assert half.expected == pytest.approx(1 / 0.7, rel=0.01)


def test_drawn_pipelines_without_a_cause() -> None:
    found = advised(published())
    # Of a lower precision, the gain depends on the kernels: its bounds are known.
    errors = [one.error for one in found if one.cause != "precision_unused"]

    assert len(found) > 100
    assert quantile(errors, 0.5) <= 0.1
    assert quantile(errors, 0.95) <= 0.3
    assert bounded(found) >= 0.9
    assert not [one for one in found if one.truth < 1.0]
    assert sum(one.truth < 1.02 for one in found) <= 0.02 * len(found)


@seeds(range(25))
def test_no_gain_exceeds_that_of_a_program_that_loses_nothing(seed: int) -> None:
    dice = random.Random(seed)
    for case in cases(seed, 2):
        e = case.evidence._replace(paused=dice.choice([0.0, dice.random()]))
        verdict = judge(e)
        most = 1.0 / max(1e-3, 1.0 - sum(verdict.causes.values()) - verdict.minor) + 0.001
        for cause, gain in gains(e, verdict).items():
            assert LEAST - 0.001 <= gain.expected <= most
            assert 1.0 <= gain.lower <= gain.expected <= gain.upper
            # What is not lost is measured to a tenth; that of a lower precision is bounded by the peak rates.
            assert gain.upper <= 1.11 * most or cause == "precision_unused"
        lower, speedup = sorted([dice.uniform(1.0, 12.0), dice.uniform(1.0, 12.0)])
        loader = of_loader(Diagnosis("too_few_workers", 8, speedup, lower), verdict)
        assert loader is not None
        assert 1.0 <= (loader.lower or 0.0) <= (loader.speedup or 0.0) <= most


def test_the_gain_of_a_loader_on_the_cpu_is_its_own() -> None:
    found = Diagnosis("too_few_workers", 8, 11.0, 8.3)

    assert of_loader(found, Verdict("training_on_cpu", "inside")) == found
    assert of_loader(found, Verdict("training", "inside", {"data_loading": 0.14})) == found._replace(
        speedup=1.163, lower=1.163
    )
    assert of_loader(None, ALL) is None


def test_a_program_that_loses_nothing_has_no_small_causes_either() -> None:
    """Python code of 4 % of a step is no cause, and takes a fifth of what is left without its loader."""
    starved = Pipeline(workers=0, load=0.9, host=0.04, kernels=0.16)
    verdict = judge(evidence(starved))
    found = of_loader(Diagnosis("training_thread", 8, 9.0, 9.0), verdict)

    assert verdict.causes.keys() == {"data_loading"}
    assert found is not None
    assert found.speedup == pytest.approx(starved.step / replace(starved, workers=8).step, rel=0.01)


def test_a_verdict_without_losses_allows_no_gain() -> None:
    assert most_gain(Verdict("training", "inside")) == 1.0
    assert most_gain(Verdict("training", "inside", {"data_loading": 0.25}, minor=0.25)) == 2.0


def test_seeds_of_the_published_gains_were_not_used_before() -> None:
    assert not set(GAIN_SEEDS) & {*TUNING_SEEDS, *PUBLISHED_SEEDS}
