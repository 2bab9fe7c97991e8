"""Families of sessions: labels, series of ended sessions, and reuse of the section."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpugauge.collectors.base import Sources, Tick
from gpugauge.collectors.training import training
from gpugauge.collectors.training.continued import continued
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.driver.api import DriverView
from gpugauge.metric import HistogramValue, LabelValues, Value
from gpugauge.node.training import STEP_BUCKETS
from gpugauge.sessions.session import NO_OWNER, Counters, Session, ThreadTime
from gpugauge.snapshot import Section
from gpugauge.wire import messages as wire
from gpugauge.wire.record import SharedRecord
from gpugauge.workload.procfs import Procfs, process_hash
from gpugauge.workload.users import Users
from gpugauge.workload.workloads import Workloads

TICK = Tick(0.0, 0.0, DriverView(up=False, reason="off"))
GONE = "killed"


def log2(**counts: int) -> tuple[int, ...]:
    """Return counts by exponent of two, given as `p3=1` (2^3) or `m10=2` (2^-10)."""
    result = [0] * wire.LOG2_BUCKETS
    for name, count in counts.items():
        power = int(name[1:]) * (-1 if name[0] == "m" else 1)
        result[power - wire.LOG2_FIRST] = count
    return tuple(result)


LOG2 = log2(m12=1, m10=1, p0=2, p7=1, p9=1)
SNAP = wire.Snap(
    "a" * 32,
    3,
    steps=wire.Progress(7, 4.5, 1700000009.0, LOG2),
    batches=wire.Progress(8, 1.5, 1700000009.5),
    parameters=(wire.Parameters("cuda:0", "bfloat16", 2, 10, 20), wire.Parameters("cuda:0", "float32", 1, 10, 40)),
    devices=(wire.Device(0, "GPU-1", 10, 20, 30, 15, 5, 1, 2), wire.Device(1, None, 10)),
    errors=0,
)
SESSION = Session(
    wire.Hello("a" * 32, 0, 1, None, 1700000000.0, {"torch": "2.13.0+cpu", "rank": "0"}), 4242, 1000, SNAP
)


class FakeSessions:
    def __init__(self, *sessions: Session) -> None:
        self.sessions = tuple(sessions)
        self.count = Counters({"foreign": 0}, {"finished": 0})

    def view(self) -> tuple[Session, ...]:
        return self.sessions

    def counters(self) -> Counters:
        return self.count


def collector(sessions: FakeSessions, process_id: Any = lambda session: f"pid-{session.peer_pid}") -> TrainingCollector:
    return TrainingCollector(sessions, process_id)


def values(section: Section) -> dict[str, dict[LabelValues, Value]]:
    return {family.metric.name: dict(family.samples) for family in section.families}


def named(prefixes: str | tuple[str, ...], section: Section) -> Iterable[str]:
    return {name for name in values(section) if name.startswith(prefixes)}


def test_connected_session_has_all_series() -> None:
    found = values(collector(FakeSessions(SESSION)).collect(TICK))
    info = ("pid-4242", "4242", "1", "", "", "2.13.0+cpu", "", "", "0", "", "", "", *NO_OWNER)
    process = ("pid-4242",)
    duration = HistogramValue((2, *([2] * 9), 4, *([4] * 6), 5, 6), 4.5, LOG2, wire.LOG2_FIRST)
    assert found == {
        "torch_process_info": {info: 1},
        "torch_memory_allocated_bytes": {("pid-4242", "GPU-1"): 10},
        "torch_memory_allocated_peak_bytes": {("pid-4242", "GPU-1"): 20},
        "torch_memory_reserved_bytes": {("pid-4242", "GPU-1"): 30},
        "torch_memory_active_bytes": {("pid-4242", "GPU-1"): 15},
        "torch_memory_inactive_split_bytes": {("pid-4242", "GPU-1"): 5},
        "torch_memory_alloc_retries_total": {("pid-4242", "GPU-1"): 1},
        "torch_memory_ooms_total": {("pid-4242", "GPU-1"): 2},
        "torch_parameter_bytes": {("pid-4242", "cuda:0"): 60},
        "torch_parameter_elements": {("pid-4242", "cuda:0", "bfloat16"): 10, ("pid-4242", "cuda:0", "float32"): 10},
        "torch_device_info": {("pid-4242", "GPU-1", "0", "", ""): 1},
        "torch_steps_total": {process: 7},
        "torch_step_duration_seconds": {process: duration},
        "torch_step_source": {("pid-4242", "optimizer"): 1},
        "torch_batches_total": {process: 8},
        "torch_data_wait_seconds_total": {("pid-4242", "training"): 1.5},
        "training_start_timestamp_seconds": {process: 1700000000.0},
        "training_last_step_timestamp_seconds": {process: 1700000009.0},
        "gpugauge_hook_errors_total": {process: 0},
        "gpugauge_hook_sessions": {(): 1},
        "gpugauge_hook_rejected_total": {("foreign",): 0},
        "gpugauge_hook_receiver_replacements_total": {("stuck",): 0, ("blocked",): 0, ("ended",): 0},
        "gpugauge_hook_sessions_cut_total": {("user",): 0, ("cgroup",): 0, ("all",): 0},
        "gpugauge_hook_bans": {(): 0},
        "gpugauge_trainings_ended_total": {("finished",): 0},
    }


def test_histogram_has_one_count_more_than_bounds() -> None:
    assert len(STEP_BUCKETS) == 18
    assert (STEP_BUCKETS[0], STEP_BUCKETS[-1]) == (2**-10, 128)
    short = replace(SNAP, steps=wire.Progress(2, 0.5, None, (1,)))
    found = values(collector(FakeSessions(SESSION._replace(snap=short))).collect(TICK))
    assert found["torch_step_duration_seconds"] == {("pid-4242",): HistogramValue((1,) * 19, 0.5, (1,), -20)}


def test_ended_session_keeps_counters_and_loses_gauges() -> None:
    section = collector(FakeSessions(SESSION._replace(ended_at=1700000020.0, end_reason=GONE))).collect(TICK)
    assert named(("torch_", "training_"), section) == {
        "torch_process_info",
        "torch_memory_alloc_retries_total",
        "torch_memory_ooms_total",
        "torch_steps_total",
        "torch_step_duration_seconds",
        "torch_batches_total",
        "torch_data_wait_seconds_total",
        "training_start_timestamp_seconds",
        "training_last_step_timestamp_seconds",
        "training_end_timestamp_seconds",
        "training_end_info",
    }
    assert values(section)["gpugauge_hook_sessions"] == {(): 0}


def test_unreported_values_are_absent() -> None:
    session = SESSION._replace(hello=wire.Hello("a" * 32, 0), snap=None)
    section = collector(FakeSessions(session)).collect(TICK)
    assert named(("torch_", "training_"), section) == {"torch_process_info"}


def test_before_the_first_step_there_is_no_source() -> None:
    waiting = SESSION._replace(snap=replace(SNAP, steps=wire.Progress()))
    found = values(collector(FakeSessions(waiting)).collect(TICK))
    assert found["torch_steps_total"] == {("pid-4242",): 0}
    assert "torch_step_source" not in found
    assert "training_last_step_timestamp_seconds" not in found


@pytest.mark.parametrize(("pid", "process_id"), [(0, lambda pid: "never called"), (4242, lambda pid: None)])
def test_session_id_is_the_identity_without_a_visible_pid(pid: int, process_id: Any) -> None:
    found = values(collector(FakeSessions(SESSION._replace(peer_pid=pid)), process_id).collect(TICK))
    assert found["torch_steps_total"] == {(process_hash("a" * 32),): 7}


def test_two_containers_with_pid_1_are_two_processes() -> None:
    other = SESSION._replace(hello=wire.Hello("b" * 32, 0, pid=1), peer_pid=0)
    found = values(collector(FakeSessions(SESSION._replace(peer_pid=0), other)).collect(TICK))
    assert found["torch_steps_total"] == {(process_hash("a" * 32),): 7, (process_hash("b" * 32),): 7}


def test_identity_is_kept_when_the_pid_is_reused() -> None:
    sessions = FakeSessions(SESSION)
    identities = iter(["first", "second"])
    under_test = collector(sessions, lambda pid: next(identities))
    under_test.collect(TICK)
    sessions.sessions = (SESSION._replace(ended_at=1.0, end_reason=GONE),)
    assert values(under_test.collect(TICK))["torch_steps_total"] == {("first",): 7}


def test_pid_of_an_ended_session_is_not_read() -> None:
    ended = SESSION._replace(ended_at=1.0, end_reason=GONE)
    found = values(collector(FakeSessions(ended)).collect(TICK))
    assert found["torch_steps_total"] == {(process_hash("a" * 32),): 7}


def test_a_training_that_ended_before_the_first_look_has_its_label_and_its_job() -> None:
    hello = replace(SESSION.hello, facts={"SLURM_JOB_ID": "7"})
    ended = SESSION._replace(hello=hello, peer_pid=1 << 30, peer_start=5, ended_at=1.0, end_reason="finished")
    procfs = Procfs()
    workloads, sessions = Workloads(procfs, users=Users(known=False)), FakeSessions(ended)
    under_test = TrainingCollector.create(Sources(procfs, workloads, sessions=sessions))
    assert under_test
    for _ in range(2):
        sessions.sessions = (ended._replace(),)  # another view
        ((labels, _),) = values(under_test.collect(TICK))["torch_process_info"].items()
        assert labels[0] == process_hash(procfs.boot_id, str(1 << 30), "5")
        assert {"slurm", "1000/7"} < set(labels)


def test_section_is_the_same_until_a_session_changes() -> None:
    sessions = FakeSessions(SESSION)
    under_test = collector(sessions)
    before = under_test.collect(TICK)
    assert under_test.collect(TICK) is before
    sessions.count = Counters({"foreign": 1}, {"finished": 0})
    after = under_test.collect(TICK)
    assert after is not before
    assert values(after)["gpugauge_hook_rejected_total"] == {("foreign",): 1}


def test_the_counts_of_the_shared_record_are_newer_than_those_of_the_message() -> None:
    record = SharedRecord("training", 1700000001.0, 9, 10, {"training": 5.0}, 1700000010.0)
    found = values(collector(FakeSessions(SESSION._replace(record=record))).collect(TICK))
    process = ("pid-4242",)
    assert found["torch_steps_total"] == {process: 9}
    assert found["torch_batches_total"] == {process: 10}
    assert found["training_last_step_timestamp_seconds"] == {process: 1700000010.0}
    before = found["torch_step_duration_seconds"][process]
    # A killed process has sent no message about its last two steps.
    killed = SESSION._replace(record=record, ended_at=1700000011.0, end_reason="killed")
    (after,) = values(collector(FakeSessions(killed)).collect(TICK))["torch_step_duration_seconds"].values()
    assert isinstance(before, HistogramValue)
    assert isinstance(after, HistogramValue)
    assert (after.counts[-1] - before.counts[-1], after.total - before.total) == (2, 1700000010.0 - 1700000009.0)
    assert after.counts[9] - before.counts[9] == 2  # half a second each
    assert after.counts[8] == before.counts[8]


def test_what_is_not_known_is_absent() -> None:
    snap = replace(SNAP, steps=None, batches=None, waits=None)
    record = SharedRecord("training", 1700000001.0, 0, 0, {"training": 5.0})
    section = collector(FakeSessions(SESSION._replace(snap=snap, record=record))).collect(TICK)
    assert not named(("torch_step", "torch_batch", "torch_data", "training_last"), section)


def test_a_program_in_the_place_of_another_one_continues_its_counts() -> None:
    waits = {"training": 1.0, "evaluating": 0.5}
    device = wire.Device(0, "GPU-1", 10, retries=1, ooms=2, device_allocs=7)
    first = SESSION._replace(
        snap=replace(SNAP, waits=waits, devices=(device,), samples=100),
        record=SharedRecord("training", 1700000001.0, 7, 8, {"training": 5.0, "loading": 1.0}),
        thread={"training": ThreadTime(3.0, 0.0, 2.0), "loading": ThreadTime(0.0, 0.0, 1.0)},
        ended_at=1700000020.0,
        end_reason="other",
    )
    second = SESSION._replace(
        hello=replace(SESSION.hello, session="b" * 32, started=1700000021.0),
        snap=replace(SNAP, session="b" * 32, waits={"training": 2.0}, devices=(), samples=None),
        record=SharedRecord("loading", 1700000030.0, 3, 4, {"training": 2.0, "loading": 1.0}),
        thread={"training": ThreadTime(0.5, 0.25, 1.0)},
    )
    sessions = FakeSessions(first._replace(ended_at=None))
    ours = collector(sessions)
    ours.collect(TICK)
    sessions.sessions = (first, second)
    found = values(ours.collect(TICK))
    process = ("pid-4242",)
    assert found["torch_steps_total"] == {process: 14}
    assert found["torch_step_duration_seconds"] == {
        process: HistogramValue(
            (4, *([4] * 9), 8, *([8] * 6), 10, 12), 9.0, tuple(2 * n for n in LOG2), wire.LOG2_FIRST
        )
    }
    assert found["torch_data_wait_seconds_total"] == {("pid-4242", "training"): 3.0, ("pid-4242", "evaluating"): 0.5}
    assert found["torch_phase_seconds_total"] == {("pid-4242", "training"): 7.0, ("pid-4242", "loading"): 2.0}
    spent = {("training", "running"): 3.5, ("training", "runnable"): 0.25, ("training", "asleep"): 3.0}
    spent |= {("loading", "running"): 0.0, ("loading", "runnable"): 0.0, ("loading", "asleep"): 1.0}
    assert found["torch_thread_seconds_total"] == {("pid-4242", *key): value for key, value in spent.items()}
    assert found["torch_samples_total"] == {process: 100}
    assert found["torch_memory_device_allocs_total"] == {("pid-4242", "GPU-1"): 7}
    assert found["training_start_timestamp_seconds"] == {process: 1700000000.0}
    assert "training_end_timestamp_seconds" not in found
    sessions.sessions = (second,)  # the first one is dropped some minutes after its end
    assert values(ours.collect(TICK))["torch_steps_total"] == {process: 14}
    sessions.sessions = (second._replace(snap=None),)
    assert values(ours.collect(TICK))["torch_steps_total"] == {process: 10}  # the record has 3


def sessions_of_one_process(count: int, *, ended: bool) -> list[Session]:
    """Return sessions with other GPUs each."""
    return [
        SESSION._replace(
            hello=replace(SESSION.hello, session=f"{number:032}"),
            snap=replace(SNAP, devices=tuple(wire.Device(i, f"GPU-{number}-{i}", 10, ooms=1) for i in range(16))),
            ended_at=1700000020.0 if ended else None,
        )
        for number in range(count)
    ]


def test_sessions_that_one_process_has_at_the_same_time_are_not_added_up() -> None:
    """Their GPUs would be as many as the square of the sessions, in each tick."""
    found = values(collector(FakeSessions(*sessions_of_one_process(100, ended=False))).collect(TICK))

    assert list(found["torch_steps_total"].values()) == [7] * 100
    assert ("pid-4242",) in found["torch_steps_total"]
    assert (process_hash(f"{1:032}"),) in found["torch_steps_total"]
    assert len(found["torch_memory_ooms_total"]) == 1600


def test_the_sum_of_ended_sessions_is_bounded_and_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added = list[Session]()

    def add(before: Session, session: Session) -> Session:
        added.append(session)
        return continued(before, session)

    monkeypatch.setattr(training, "continued", add)
    ended, sessions = sessions_of_one_process(100, ended=True), FakeSessions()
    ours = collector(sessions)
    for number, session in enumerate(ended):  # one after the other
        sessions.sessions = (*ended[:number], last := session._replace(ended_at=None))
        found = values(ours.collect(TICK))
        assert len(found["torch_memory_ooms_total"]) == min(16 * (number + 1), 64)
        assert len(added) <= 2  # it, and the one before, which has ended
        added.clear()
    assert found["torch_steps_total"] == {("pid-4242",): 700}

    changed = last._replace(snap=replace(SNAP, steps=wire.Progress(8, 4.5)))
    sessions.sessions = (*ended[1:-1], changed)  # the first one is dropped
    assert values(ours.collect(TICK))["torch_steps_total"] == {("pid-4242",): 701}
    assert added == [changed]
