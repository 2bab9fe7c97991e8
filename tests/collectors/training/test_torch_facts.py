"""Facts of a training process: reported ones are exported, others have no series."""

from dataclasses import replace

from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SharedRecord

from .test_training import GONE, SESSION, SNAP, TICK, FakeSessions, collector, values

RECORD = SharedRecord("loading", 1700000008.0, 7, 8, {**dict.fromkeys(PHASES, 0.0), "loading": 1.5, "training": 4.25})


def test_exactly_one_phase_is_1() -> None:
    found = values(collector(FakeSessions(SESSION._replace(record=RECORD))).collect(TICK))
    assert {("pid-4242", phase): int(phase == "loading") for phase in PHASES} == found["torch_phase"]
    assert {("pid-4242",): 1700000008.0} == found["training_phase_since_timestamp_seconds"]
    assert {("pid-4242", phase): RECORD.seconds[phase] for phase in PHASES} == found["torch_phase_seconds_total"]


def test_ended_process_keeps_phase_seconds_and_loses_its_phase() -> None:
    ended = SESSION._replace(record=RECORD, ended_at=1700000020.0, end_reason=GONE)
    found = values(collector(FakeSessions(ended)).collect(TICK))
    assert "torch_phase" not in found
    assert [4.25] == [value for (_, phase), value in found["torch_phase_seconds_total"].items() if phase == "training"]


def test_later_facts_are_merged_with_those_of_the_hello() -> None:
    facts = {"build": "cuda", "architectures": "sm_90", "backend": "nccl", "world_size": "8", "wandb_run": "abc"}
    facts |= {"loader_workers": "4", "loader_batch_size": "32", "loader_pin_memory": "yes"}
    found = values(collector(FakeSessions(SESSION._replace(snap=replace(SNAP, facts=facts)))).collect(TICK))
    process = "pid-4242"
    assert {(process, "cuda", "sm_90", *("",) * 10): 1} == found["torch_build_info"]
    assert {(process, "nccl", "", "", "", "", ""): 1} == found["torch_parallel_info"]
    assert {(process, "abc", "", "", "", "", ""): 1} == found["torch_run_info"]
    assert {(process, "4", "32", "yes", ""): 1} == found["torch_loader_info"]
    ((_, _, _, _, _, torch, _, _, rank, _, world_size, *_),) = found["torch_process_info"]
    assert ("2.13.0+cpu", "0", "8") == (torch, rank, world_size)


def test_values_of_newer_hooks_are_exported() -> None:
    snap = replace(
        SNAP,
        step_source="batches",
        optimizer_state=(wire.Parameters("cpu", "float32", 1, 2, 8),),
        exposed_wait_seconds=0.5,
        local_work_seconds=3.5,
        compilations=2,
    )
    found = values(collector(FakeSessions(SESSION._replace(snap=snap))).collect(TICK))
    assert {("pid-4242", "batches"): 1} == found["torch_step_source"]
    assert {("pid-4242", "cpu", "float32"): 8} == found["torch_optimizer_state_bytes"]
    assert {("pid-4242",): 0.5} == found["torch_data_wait_exposed_seconds_total"]
    assert {("pid-4242",): 3.5} == found["torch_local_work_seconds_total"]
    assert {("pid-4242",): 2} == found["torch_compilations_total"]


def test_unknown_step_source_is_not_a_label_value() -> None:
    foreign = SESSION._replace(snap=replace(SNAP, step_source="\U0001f525"))
    found = values(collector(FakeSessions(foreign)).collect(TICK))
    assert {("pid-4242", "optimizer"): 1} == found["torch_step_source"]
