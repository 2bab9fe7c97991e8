from typing import Any

import pytest

from gpugauge.node.node import Verdict
from gpugauge.verdict.causes import CAUSES, STATES
from gpugauge.verdict.evidence import DeviceEvidence, Evidence
from gpugauge.verdict.judge import judge

BUSY = DeviceEvidence(busy=0.97, own_busy=0.97, sm_active=0.85, tensor_active=0.4, power=0.8, clock=1.0, thermal=0.0)
HEALTHY = Evidence(
    window=60.0,
    age=3600.0,
    inside=True,
    phase="training",
    steps=600,
    steps_ever=36000,
    batches=600,
    since_progress=0.1,
    slow_step=0.12,
    data_wait=0.01,
    data_wait_exposed=0.0,
    pinned=True,
    asleep=0.0,
    runnable=0.0,
    cpu_throttled=0.0,
    memory_pressure=0.0,
    parameters={"cuda": 1e9},
    build="cuda",
    devices=(BUSY,),
    host_has_gpu=True,
)
ON_CPU = HEALTHY._replace(parameters={"cpu": 1.0}, devices=(BUSY._replace(own_busy=0.0),))


def starved(busy: float, **changes: Any) -> Evidence:
    return HEALTHY._replace(devices=(BUSY._replace(busy=busy, own_busy=busy, sm_active=busy * 0.85),), **changes)


AT_TIMES = starved(0.4, loader_workers=4, loading=0.5, data_wait=0.2, data_wait_exposed=0.2)


def test_healthy_run_has_no_cause() -> None:
    assert judge(HEALTHY).limited_by is None
    assert judge(HEALTHY).causes == {}


def test_cause() -> None:
    for evidence, cause in (
        (starved(0.4, data_wait=0.6, data_wait_exposed=0.55), "data_loading"),
        (starved(0.4), "host_bound"),
        (starved(0.4, data_wait=None, data_wait_exposed=None), "unknown"),
        # Copies are not counted, and the memory is not pinned.
        (starved(0.4, pinned=False), "unknown"),
        (HEALTHY._replace(pinned=False, devices=(BUSY._replace(busy=0.5, own_busy=0.5, transfer=0.01),)), "host_bound"),
        # The thread waits for the loader while the GPU is busy: no time is lost.
        (starved(0.4, data_wait=0.6, data_wait_exposed=0.02), "host_bound"),
        (starved(0.3, data_wait=0.7, data_wait_exposed=0.7, cpu_throttled=0.75), "cpu_limited"),
        (starved(0.3, data_wait=0.7, data_wait_exposed=0.7, memory_pressure=0.75), "memory_swap_io"),
        (starved(0.5, retries=200), "memory_pressure"),
        (HEALTHY._replace(pinned=False, devices=(BUSY._replace(busy=0.6, own_busy=0.6, transfer=0.35),)), "transfer"),
        # Copies from pinned memory overlap with kernels.
        (HEALTHY._replace(devices=(BUSY._replace(busy=0.6, own_busy=0.6, transfer=0.35),)), "host_bound"),
        # Workers deliver too slowly: a faster host would wait longer for them.
        (starved(0.4, loader_workers=4, loading=0.9, data_wait=0.25, data_wait_exposed=0.25), "data_loading"),
        # They do so for a part of the time: the rest of the gaps is another's.
        (starved(0.4, loader_workers=4, loading=0.5, data_wait=0.25, data_wait_exposed=0.25), "unknown"),
        # Nor does what its workers lack cost more than is waited for them, unless the thread lacks it, too.
        (AT_TIMES._replace(memory_pressure=0.45), "unknown"),
        (AT_TIMES._replace(memory_pressure=0.45, asleep=0.3), "memory_swap_io"),
        (starved(0.4, loader_workers=4, loading=0.5), "host_bound"),
        (starved(0.4, loader_workers=4, loading=0.95), None),  # a faster host would wait for them
        (starved(0.3, cpu_throttled=0.5, memory_pressure=0.5), "cpu_limited"),  # together they explain the gaps
        (HEALTHY._replace(fp32_only=True, devices=(BUSY._replace(sm_active=0.2, tensor_active=0.0),)), "underfilled"),
        (HEALTHY._replace(devices=(BUSY._replace(sm_active=0.2),)), "underfilled"),
        (HEALTHY._replace(fp32_only=True, devices=(BUSY._replace(tensor_active=0.0),)), "precision_unused"),
        (HEALTHY._replace(devices=(BUSY._replace(clock=0.5, thermal=0.9),)), "throttled"),
        (HEALTHY._replace(devices=(BUSY._replace(own_busy=0.4, shared=True),)), "contention"),
        (starved(0.4, asleep=0.55), "waiting_elsewhere"),
        (starved(0.6, parameters={"cpu": 1e9}), "offloaded"),
        (
            HEALTHY._replace(world_size=8, local_work=0.3, devices=(BUSY._replace(power=0.2, tensor_active=0.1),)),
            "waiting_for_peers",
        ),
        (
            HEALTHY._replace(world_size=2, local_work=0.3, devices=(BUSY._replace(power=0.2, tensor_active=0.1),)),
            "waiting_for_peers",
        ),
        (
            HEALTHY._replace(
                world_size=8,
                local_work=0.3,
                slow_network=True,
                devices=(BUSY._replace(power=0.2, tensor_active=0.1),),
            ),
            "slow_network",
        ),
        (HEALTHY._replace(world_size=8, local_work=0.95, slow_network=True), None),
        (HEALTHY._replace(unused_devices=3), "unused_gpus"),
        (ON_CPU._replace(), "model_on_cpu"),
        (ON_CPU._replace(build="cpu"), "no_cuda_build"),
        (ON_CPU._replace(visible_devices=0), "no_visible_device"),
        (ON_CPU._replace(driver_too_old=True), "driver_mismatch"),
        (ON_CPU._replace(arch_supported=False), "unsupported_arch"),
    ):
        assert judge(evidence).limited_by == cause, evidence


def test_gpus_of_a_stalled_rank_that_are_busy_wait_in_a_collective() -> None:
    stalled = HEALTHY._replace(since_progress=400.0, steps=0, batches=0, steps_ever=9, batches_ever=9, world_size=2)
    stalled = stalled._replace(devices=(BUSY._replace(busy=0.99),))
    alone, partly = stalled._replace(world_size=1), stalled._replace(devices=(BUSY._replace(busy=0.9),))

    assert (judge(stalled).state, judge(stalled).limited_by) == ("stalled", "collective")
    assert judge(stalled).causes == {"collective": 1.0}
    assert [(judge(e).state, judge(e).causes) for e in (alone, partly)] == [("stalled", {})] * 2


def test_slow_loader_shares_the_gaps_with_a_throttled_cgroup() -> None:
    verdict = judge(starved(0.3, loader_workers=4, data_wait=0.7, data_wait_exposed=0.7, cpu_throttled=0.35))

    assert verdict.limited_by == "data_loading"
    assert verdict.causes == {"data_loading": pytest.approx(0.4667), "cpu_limited": pytest.approx(0.2333)}


def test_idle_time_of_pauses_is_not_lost() -> None:
    assert judge(starved(0.4, paused=0.25)).causes == {"host_bound": pytest.approx(0.45)}


def test_a_gpu_that_may_be_idle_in_short_pauses_only_has_no_cause() -> None:
    # If it was busy in all of the pauses, it was busy for 0.27 and for 0.54 of the rest.
    assert judge(starved(0.7, mixed=0.3)).limited_by == "host_bound"
    assert judge(starved(0.97, mixed=0.3)._replace(devices=(BUSY._replace(sm_active=0.2),))).limited_by == "unknown"


def test_unowned_busy_time_is_no_contention() -> None:
    began = HEALTHY._replace(devices=(BUSY._replace(own_busy=0.7, unowned_busy=0.25, shared=True),))

    assert judge(began).limited_by is None


def test_contention_is_named_unless_the_kernels_of_the_training_can_be_what_fills_little() -> None:
    """The counters of a GPU are those of all processes: others that fill it can leave nothing of them."""
    device = BUSY._replace(own_busy=0.4, shared=True)
    found = {active: judge(HEALTHY._replace(devices=(device._replace(sm_active=active),))) for active in (0.85, 0.55)}

    assert {active: verdict.limited_by for active, verdict in found.items()} == {0.85: "contention", 0.55: "unknown"}


def test_a_share_below_five_percent_is_noise() -> None:
    found = {busy: judge(starved(busy)).causes for busy in (0.96, 0.93, 0.85)}

    assert found == {0.96: {}, 0.93: {"host_bound": pytest.approx(0.07)}, 0.85: {"host_bound": pytest.approx(0.15)}}


def test_kernels_that_fill_a_part_of_the_gpu_cost_the_rest_of_the_time() -> None:
    # Kernels that are large enough have 85 % of the multiprocessors active, and need a part of the time.
    for part in (2, 4, 8):
        small = BUSY._replace(busy=1.0, own_busy=1.0, sm_active=0.85 / part)
        causes = judge(HEALTHY._replace(devices=(small,))).causes
        assert causes == {"underfilled": pytest.approx(1 - 1 / part, abs=1e-3)}


def test_no_cause_with_little_evidence() -> None:
    verdict = judge(starved(0.4, window=10.0, data_wait=0.6, data_wait_exposed=0.6))

    assert (verdict.limited_by, verdict.causes) == (None, {"unknown": 0.6})


def test_stalled_seconds_can_be_set() -> None:
    quiet = HEALTHY._replace(steps=0, batches=0, since_progress=21.0)

    assert [judge(quiet, stalled_seconds=s).state for s in (20.0, 30.0)] == ["stalled", "training"]


def test_training_on_the_cpu_loses_nothing_without_a_gpu() -> None:
    verdict = judge(HEALTHY._replace(parameters={"cpu": 1.0}, devices=(), host_has_gpu=False))

    assert (verdict.state, verdict.limited_by) == ("training_on_cpu", None)


def test_power_cap_counts_only_with_a_lowered_limit() -> None:
    capped = BUSY._replace(clock=0.6, power_capped=1.0, power_limit_lowered=False)

    assert judge(HEALTHY._replace(devices=(capped,))).limited_by is None
    assert judge(HEALTHY._replace(devices=(capped._replace(power_limit_lowered=True),))).limited_by == "throttled"


def test_power_draw_near_a_lowered_limit_is_not_high() -> None:
    """A collective that spins draws little power; of a lowered limit that is a large share, which shows nothing."""
    for power, lowered, cause in (
        (0.5, False, "waiting_for_peers"),
        (0.95, False, None),
        (0.95, True, "waiting_for_peers"),
    ):
        spinning = BUSY._replace(power=power, power_limit_lowered=lowered, tensor_active=0.1)
        found = judge(HEALTHY._replace(world_size=4, local_work=0.4, devices=(spinning,)))
        assert found.limited_by == cause, (power, lowered)


def test_causes_that_need_the_waits_are_undecidable_without_them() -> None:
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"data_wait": None, "data_wait_exposed": None}, True),
        ({"data_wait": 0.0, "data_wait_exposed": None}, False),
        ({"data_wait": None, "data_wait_exposed": 0.0}, False),
        ({"data_wait": None, "data_wait_exposed": None, "window": 10.0}, False),  # may still come
        ({"data_wait": None, "data_wait_exposed": None, "inside": False}, False),
        ({"data_wait": None, "data_wait_exposed": None, "phase": "starting", "steps_ever": 0, "age": 5.0}, False),
    ]
    found = [judge(HEALTHY._replace(**changes)).undecidable for changes, _ in cases]

    gaps = {"data_loading", "host_bound", "waiting_elsewhere", "offloaded"}
    assert found == [gaps if waits else set() for _, waits in cases]


def test_the_unknown_loss_is_the_mean_of_the_held_gpus() -> None:
    for loads in ([0.2], [0.2, 0.6], [0.2, 0.6, 0.9, 0.9]):
        held = tuple(DeviceEvidence(busy=load) for load in loads)
        found = judge(Evidence(window=60.0, inside=False, devices=held)).causes
        assert found == {"unknown": pytest.approx(1 - sum(loads) / len(loads), abs=1e-3)}


def test_undecidable_causes_without_gpm() -> None:
    verdict = judge(HEALTHY._replace(fp32_only=True, devices=(BUSY._replace(sm_active=None, tensor_active=None),)))

    assert verdict.undecidable == {"underfilled", "precision_unused", "transfer"}
    assert verdict.limited_by is None


def test_no_inside_cause_without_the_hook() -> None:
    verdict = judge(starved(0.3)._replace(inside=False))

    assert (verdict.state, verdict.causes, verdict.confidence) == ("unknown", {"unknown": 0.7}, "outside")
    assert verdict.limited_by is None


def test_cause_stays_until_another_leads_clearly() -> None:
    evidence = starved(0.4, data_wait=0.49, data_wait_exposed=0.49)  # the loader would save 0.49, the host 0.51

    assert judge(evidence).limited_by == "host_bound"
    assert judge(evidence, Verdict("training", "inside", {}, "data_loading")).limited_by == "data_loading"


def test_shares_never_exceed_the_held_time() -> None:
    evidence = starved(0.2, data_wait=0.9, data_wait_exposed=0.9, retries=3, cpu_throttled=0.9)

    assert sum(judge(evidence).causes.values()) <= 1.0


def test_memory_pressure_is_at_most_what_the_allocator_can_have_cost() -> None:
    cases: list[tuple[dict[str, float], dict[str, Any]]] = [
        (
            {"retries": 1, "device_allocs": 50, "device_frees": 50},
            {"host_bound": 0.4983},
        ),  # at most 0.1 s of the minute
        (
            {"retries": 50, "device_allocs": 6000, "device_frees": 6000},
            {"memory_pressure": pytest.approx(0.2), "host_bound": pytest.approx(0.3)},
        ),
        ({"retries": 50, "device_allocs": 60000, "device_frees": 60000}, {"memory_pressure": 0.5}),
        # The cache is freed without a retry.
        ({"device_allocs": 60000, "device_frees": 60000}, {"memory_pressure": 0.5}),
        # Nothing is freed: the allocator grew.
        ({"device_allocs": 60000, "device_frees": 0}, {"host_bound": 0.5}),
        # A hook that does not count the calls.
        ({"retries": 1}, {"host_bound": 0.4967}),
        ({"retries": 60}, {"memory_pressure": pytest.approx(0.2), "host_bound": pytest.approx(0.3)}),
        ({"ooms": 60}, {"memory_pressure": pytest.approx(0.2), "host_bound": pytest.approx(0.3)}),
    ]

    assert [judge(starved(0.5, **allocator)).causes for allocator, _ in cases] == [shares for _, shares in cases]


def test_what_the_allocator_cannot_have_cost_is_unknown_without_the_waits() -> None:
    verdict = judge(starved(0.5, data_wait=None, data_wait_exposed=None, retries=60))

    assert verdict.causes == {"memory_pressure": pytest.approx(0.2), "unknown": pytest.approx(0.3)}


def test_every_cause_and_state_is_in_the_tables() -> None:
    assert judge(HEALTHY).state in STATES
    assert {"data_loading", "unknown", "model_on_cpu"} <= CAUSES.keys()
