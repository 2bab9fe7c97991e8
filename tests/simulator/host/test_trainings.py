"""The hook's side of simulated trainings: as a hook could have sent it, and never going back."""

from __future__ import annotations

from pathlib import Path

from gpugauge.sessions.session import Counters, Session
from gpugauge.simulator.host.procfs import ProcTree
from gpugauge.simulator.host.trainings import SimulatedSessions
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.wire import messages as wire
from gpugauge.wire.decoding import decode
from gpugauge.wire.record import PHASES
from tests.simulator.build import scenario

START = 1_790_000_000.0
TEXT = """
gpus: {model: h100, count: 4}
processes:
  - {pid: 50, gpus: [0, 1], per_gpu: 1, memory: 10GiB, container_pid: 7, end: 100, command: python3 -m x my.py,
     pipeline: {kernels: 0.5, load: 4.0}, phases: {compiling: 10, every: 20, evaluating: 5}}
  - {pid: 60, gpus: [2], memory: 10GiB, pipeline: {retries: 1.0}, start: 30}
  - {pid: 70, gpus: [3], memory: 10GiB, pipeline: {}, hook: false}
"""


OTHER = Session(wire.Hello("f" * 32, 0, 4711), 4711, 1000)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Real:
    """The session of one real training."""

    def __init__(self) -> None:
        self.sessions: tuple[Session, ...] = (OTHER,)
        self.counted = Counters({"rate": 3}, {"finished": 2, "killed": 1})

    def view(self) -> tuple[Session, ...]:
        return self.sessions

    def counters(self) -> Counters:
        return self.counted


def sessions(clock: Clock, real: Real | None = None) -> SimulatedSessions:
    made = scenario(TEXT)
    made._start |= {"monotonic": 0.0, "unix": START}
    return SimulatedSessions(made, real, 300.0, clock)


def at(second: float) -> dict[int, Session]:
    clock = Clock()
    clock.now = second
    return {session.peer_pid: session for session in sessions(clock).view()}


def test_trainings_with_a_hook_have_a_session_until_they_have_lingered() -> None:
    assert [sorted(at(t)) for t in (0.5, 1, 31, 399, 401)] == [[], [50, 51], [50, 51, 60], [50, 51, 60], [60]]
    assert [at(t)[50].ended_at for t in (99, 101)] == [None, START + 100]


def test_messages_are_valid() -> None:
    for session in at(90).values():
        assert session.snap is not None
        assert decode(wire.encode(session.hello)) == session.hello
        assert decode(wire.encode(session.snap)) == session.snap


def test_steps_waits_and_phases_of_a_starved_training() -> None:
    session = at(47)[50]
    assert session.snap is not None
    assert session.snap.steps is not None
    assert session.record is not None

    # One step a second: 4 workers take 4 s each for a batch. 10 s of compiling, then 15 + 5 + 15 s, and 2 s.
    assert session.snap.steps.count == 30
    assert session.snap.steps.last == START + 45
    assert session.snap.steps.seconds == 45 - 11
    assert sum(session.snap.steps.log2) == 29
    assert session.snap.batches is not None
    assert abs(session.snap.batches.seconds - 30 * 0.97) < 1e-9
    assert (session.record.phase, session.record.since) == ("evaluating", START + 45)
    assert abs(sum(session.record.seconds.values()) - 47) < 1e-9
    assert set(session.record.seconds) == set(PHASES)


def test_counters_do_not_decrease() -> None:
    before = None
    for second in range(2, 100):
        snap = at(second)[50].snap
        assert snap is not None
        assert snap.steps is not None
        now = (snap.sequence, snap.steps.count, snap.steps.seconds, snap.exposed_wait_seconds, *snap.steps.log2)
        counts = {name: value or 0 for name, value in vars(snap.loader or wire.Loader(0)).items()}
        now += tuple(value for name, value in counts.items() if name not in ("slowest", "worker_bytes"))
        assert before is None or all(a >= b for a, b in zip(now, before, strict=True))  # type: ignore[operator]  # None is excluded above
        before = now


def test_facts_and_tensors() -> None:
    session = at(40)[51]
    assert session.snap is not None

    assert session.hello.pid == 8
    assert {key: session.facts[key] for key in ("command", "rank", "world_size", "build", "loader_workers")} == {
        "command": "my.py",
        "rank": "1",
        "world_size": "2",
        "build": "cuda",
        "loader_workers": "4",
    }
    assert {(p.device, p.dtype) for p in session.snap.parameters} == {("cuda:0", "torch.bfloat16")}
    (device,) = session.snap.devices
    assert device.uuid is not None
    assert (device.allocated, device.capability) == (round(0.8 * (10 << 30)), "9.0")


def test_a_training_on_amd_has_a_build_for_it() -> None:
    made, clock = load_scenario("mi300x"), Clock()
    made._start |= {"monotonic": 0.0, "unix": START}
    clock.now = 60.0
    facts = [session.facts for session in SimulatedSessions(made, None, 300.0, clock).view()]

    assert facts
    assert {each["build"] for each in facts} == {"rocm"}
    assert all(each["hip"] and "gfx942" in each["architectures"].split() for each in facts)
    assert not any({"cuda", "driver_cuda"} & each.keys() for each in facts)


def test_retries_of_the_allocator() -> None:
    snap = at(60)[60].snap
    assert snap is not None

    assert snap.devices[0].retries is not None
    assert snap.devices[0].retries > 100


def test_simulated_sessions_with_real_ones() -> None:
    clock, real = Clock(), Real()
    both = sessions(clock, real)
    clock.now = 5.2
    first = both.view()
    clock.now = 5.9

    assert both.view() is first
    assert [both.owns(session) for session in first] == [False, True, True]
    real.sessions = (OTHER._replace(peer_uid=1001),)
    assert both.view() is not first
    clock.now = 6.0
    assert both.view()[0] is real.sessions[0]


def test_ends_are_counted_with_the_real_ones() -> None:
    clock, real = Clock(), Real()
    both = sessions(clock, real)
    before = both.counters()
    clock.now = 101.0

    assert before.ended == {"finished": 2, "killed": 1}
    assert both.counters() == Counters({"rate": 3}, {"finished": 4, "killed": 1})
    assert both.counters() is both.counters()


def test_accounts_of_the_kernel(tmp_path: Path) -> None:
    made = scenario(
        "gpus: {model: h100}\nprocesses: [{pid: 5, gpus: [0], cgroup: /a/b, "
        "pipeline: {cpu_quota: 0.5, host: 0.2, load: 0.4, workers: 0, paging: 0.2}}]"
    )
    made._start |= {"monotonic": 0.0}
    tree = ProcTree(tmp_path, made)
    tree.update(0.0)
    tree.update(100.0)
    fields = (tmp_path / "5/stat").read_text().split()

    # A step is 0.6 s of CPU time, which takes 2.5 times as long.
    assert [int(fields[n]) for n in (11, 13, 15)] == [4000, 4000, 0]
    assert "libtorch_cuda.so" in (tmp_path / "5/maps").read_text()
    assert (tmp_path / "cgroup/a/b/cpu.stat").read_text() == "usage_usec 40000000\nthrottled_usec 50000000\n"
    assert (tmp_path / "cgroup/a/b/cpu.max").read_text() == "40000 100000\n"
    assert "total=20000000\n" in (tmp_path / "cgroup/a/b/memory.pressure").read_text()


def test_cgroup_outside_of_the_folder_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    made = scenario("gpus: {model: h100}\nprocesses: [{pid: 5, gpus: [0], cgroup: /../../x, pipeline: {}}]")

    ProcTree(tmp_path / "proc", made).update(made.simulation()["start"]["monotonic"])

    assert [path.name for path in tmp_path.iterdir()] == ["proc"]


def test_the_batches_of_a_loader() -> None:
    def loader(second: float = 300, **of_pipeline: float) -> wire.Loader:
        keys = ", ".join(f"{name}: {value}" for name, value in of_pipeline.items())
        text = f"gpus: {{model: h100}}\nprocesses: [{{pid: 5, gpus: [0], pipeline: {{kernels: 0.5, {keys}}}}}]"
        made = scenario(text)
        made._start |= {"monotonic": 0.0, "unix": START}
        clock = Clock()
        clock.now = second
        (session,) = SimulatedSessions(made, None, 300.0, clock).view()
        assert session.snap is not None
        assert session.snap.loader is not None
        return session.snap.loader

    def each(found: wire.Loader) -> list[float]:
        parts = (found.cpu_seconds, found.storage_seconds, found.queued_seconds)
        return [round((part or 0.0) / (found.measured or 1), 6) for part in parts]

    # A batch is a second of work; then three quarters of it are waits for storage.
    assert each(loader(load=1.0)) == [1.0, 0.0, 0.0]
    assert each(loader(load=1.0, storage=0.75)) == [0.25, 0.75, 0.0]
    # Half of the CPU time that is needed: each CPU second takes two, a wait for storage as long as before.
    assert each(loader(load=1.0, storage=0.5, cpu_quota=0.5)) == [0.5, 0.5, 0.5]
    # Two CPUs need 1.015 s for a step with its batch: each of 4 workers has one all the time.
    assert each(loader(load=2.0, cores=2)) == [2.0, 0.0, round(4 * 1.015 - 2.0, 6)]
    # Four times as long for one of four workers.
    slow = loader(load=1.0, straggler=4.0)
    assert each(slow) == [1.75, 0.0, 0.0]
    assert slow.slowest == 0.25
    # A batch takes 0.5 s, and the start of the workers 100 s of each epoch of 200 steps.
    restarted = loader(second=1001, restart=100.0)
    assert (restarted.batches, restarted.starts, restarted.start_seconds) == (1002, 6, 0.5 * 1002)
    assert loader(load=1.0, workers=0).worker_bytes is None
