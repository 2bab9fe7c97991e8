"""Who the processes are: when they are asked for, and what those that hang stop.

Drawn processes hang, end, run another program, change their cgroup, or have a pid that is used again. Callers want them
with devices that change, while the kubelet is late or fails. Who each is, is worked out here.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.collectors.training.test_training import SESSION, TICK, FakeSessions
from tests.drawn import draws, seeds
from tests.sessions.hooks import until

from gpugauge.base import guard
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.wire.messages import Hello
from gpugauge.workload.identity import Workload
from gpugauge.workload.kubelet import Allocations, KubeletError
from gpugauge.workload.procfs import Procfs, process_hash
from gpugauge.workload.registry import Identity, Registry, Want
from gpugauge.workload.workloads import Workloads
from qa.worlds.trees import proc, v2

CALLERS, PIDS, DEVICES = ("process", "host", "training"), (41, 42, 43, 44), ("GPU-0", "GPU-1", "GPU-2")
AWAITED, KEPT = 60.0, 60.0  # seconds for which a name is awaited, and an answer of the kubelet kept
STEPS, MOST_HANGING = 25, 2
Holder = tuple[str, str]  # namespace and name of a pod
# Kind of the workload, namespace and pod, program, kind and name of the job, pid in the container.
Facts = tuple[str, str, str, str, str, str, int | None]

SEVEN = Want(7, 70)
GPU_0, GPU_1 = ("GPU-0",), ("GPU-1",)


@dataclass(eq=False)
class Hang:
    """Reads of a file of a process that hang: whether one has begun, and when they are over."""

    file: str
    reached: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class Life:
    """A process, and what is known of it once it was read: as it was then."""

    pid: int
    start: int
    kind: str
    uid: str
    holder: Holder
    program: str = ""
    hang: Hang | None = None
    is_stuck: bool = False  # it was asked for, and hangs
    devices: tuple[str, ...] = ()  # when it was asked for last
    found: float = 0.0  # when it was read
    read: str = ""  # its program at that time
    is_named: bool = False
    job: tuple[str, str] = ("", "")

    @property
    def process(self) -> str:
        return f"{self.pid}-{self.start}"


class Hanging(Procfs):
    """A proc file system in which reads of some processes hang, of the first file or of a later one."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.hangs: dict[int, Hang] = {}

    def read(self, pid: int, name: str, limit: int = 65536) -> bytes:
        hang = self.hangs.get(pid)
        if hang and hang.file == name:
            hang.reached.set()
            hang.over.wait(60)
        return super().read(pid, name, limit)


class Node:
    """The processes and pods of a node, and what a daemon knows of them if it makes no mistake."""

    def __init__(self, dice: random.Random, folder: Path) -> None:
        self.dice, self.made, self.now, self.starts = dice, proc(folder / "proc"), 1000.0, 100
        self.passed = 1e6  # seconds by the clock that says what hangs
        self.procfs, self.socket = Hanging(self.made.root), folder / "kubelet"
        self.socket.touch()
        self.lives: dict[int, Life] = {}
        self.hanging: list[Life] = []
        self.holders: dict[str, set[Holder]] = {device: set() for device in DEVICES}
        self.is_up = False  # the kubelet
        self.answered: float | None = None
        self.view: dict[str, set[Holder]] = {}
        self.looked: object = None  # the view, when a caller asked last
        self.cache: dict[int, Life] = {}  # the last life of a pid that was read
        self.wants: dict[str, dict[Life, tuple[str, ...]]] = {caller: {} for caller in CALLERS}
        self.told: dict[str, dict[Life, tuple[str, ...]]] = {caller: {} for caller in CALLERS}
        self.known: dict[Life, Facts] = {}

    # What happens.

    def happen(self) -> None:
        pid, event = self.dice.choice(PIDS), self.dice.random()
        life = self.lives.get(pid)
        if life is None:
            self.begin(pid)
        elif event < 0.3:
            self.end(life)
            if event < 0.2:
                self.begin(pid)
        elif event < 0.4:
            self.run(life)
        elif event < 0.5 and self.cache.get(pid) is life:
            self.run(life, "/system.slice/slurmstepd.scope/job_7/step_0")
        if self.dice.random() < 0.3:
            self.is_up = not self.is_up

    def begin(self, pid: int) -> None:
        self.starts += self.dice.randint(1, 9)
        kind = self.dice.choice(("pod", "pod", "pod", "slurm", "container"))
        uid = f"{self.dice.getrandbits(32):08x}-0000-4000-8000-{self.starts:012x}"
        holder = self.dice.choice(("ml", "research")), self.dice.choice(("trainer-0", "trainer-1"))
        life = self.lives[pid] = Life(pid, self.starts, kind, uid, holder)
        for device in self.dice.sample(DEVICES, self.dice.randint(1, 2)) if kind == "pod" else ():
            self.holders[device].add(holder)
        self.run(life)
        others = [each.pid for each in self.hanging]  # its reads would be held up by those of an earlier one, too
        if len(others) < MOST_HANGING and pid not in others and self.dice.random() < 0.3:
            life.hang = self.procfs.hangs[pid] = Hang(self.dice.choice(("status", "cgroup")))
            self.hanging.append(life)
            for each in self.wants.values():  # whoever asks for an earlier one hangs, too
                for earlier in [one for one in each if one.pid == pid]:
                    del each[earlier]

    def run(self, life: Life, cgroup: str = "") -> None:
        """Write the files of a process. It is the same one with another program, and in another cgroup."""
        life.program = f"p{self.dice.getrandbits(32):x}.py"
        container = f"{life.start:064x}"
        place = {
            "pod": f"/kubepods/burstable/pod{life.uid}/{container}",
            "slurm": f"/system.slice/slurmstepd.scope/job_{life.start}/step_0",
            "container": f"/system.slice/docker-{container}.scope",
        }[life.kind]
        environ = {"HOSTNAME": life.holder[1]} if life.kind == "pod" else {}
        argv, group = ("/usr/bin/python3", life.program), v2(cgroup or place)
        self.made.process(life.pid, argv, cgroup=group, environ=environ, start=life.start, container_pid=7)

    def end(self, life: Life) -> None:
        """End a process. A thread that hangs in its files still does so."""
        del self.lives[life.pid]
        self.procfs.hangs.pop(life.pid, None)
        if life in self.hanging and not life.is_stuck:
            self.hanging.remove(life)
        shutil.rmtree(self.made.root / str(life.pid))
        if not any(each.kind == "pod" and each.holder == life.holder for each in self.lives.values()):
            for holders in self.holders.values():
                holders.discard(life.holder)

    def want(self, caller: str, every: list[Life]) -> None:
        """Draw what a caller reads from now on, also processes that have ended, and with which devices."""
        self.wants[caller] = {}
        last = {life.pid: life for life in self.hanging}
        every = [life for life in every if last.get(life.pid, life) is life]
        for life in self.dice.sample(every, self.dice.randint(0, len(every))):
            own = [device for device, holders in self.holders.items() if life.holder in holders]
            names = self.dice.choice((own, own[:1], own[-1:], [self.dice.choice(DEVICES)]))
            self.wants[caller][life] = () if caller == "host" else tuple(names)

    # What is known then.

    def refresh(self) -> None:
        """Have the kubelet asked."""
        if self.is_up:
            self.answered = self.now
        recent = self.answered is not None and self.now - self.answered < KEPT
        view = {d: set(h) for d, h in self.holders.items() if h} if self.is_up else self.view if recent else {}
        self.view = self.view if view == self.view else view

    def asked(self, caller: str) -> None:
        """Know what the processes are that a caller has just asked for. Names that have come are added first."""
        self.told[caller] = {**self.wants[caller]}
        if self.looked is not self.view:
            self.looked = self.view
            for life in self.cache.values():
                if life.job[1] and not life.is_named:
                    self.name(life)
        wanted = {life for each in self.told.values() for life in each}
        self.known = {life: facts for life, facts in self.known.items() if life in wanted}
        for life in self.told[caller]:
            devices = tuple({device for each in self.told.values() for device in each.get(life, ())})
            if life in self.hanging and self.lives.get(life.pid) is life:
                life.devices = life.devices if life.is_stuck else devices
                life.is_stuck = True
            if not life.is_stuck:
                self.answered_with(life, devices)

    def answered_with(self, life: Life, devices: tuple[str, ...]) -> None:
        if self.cache.get(life.pid) is not life:
            if self.lives.get(life.pid) is not life:
                return  # it cannot be read any more
            self.cache[life.pid], life.found, life.read = life, self.now, life.program
        life.devices = devices or life.devices
        self.name(life)
        holder = life.holder if life.is_named else ("", "")
        self.known[life] = (life.kind, *holder, life.read, *life.job, 7)

    def name(self, life: Life) -> None:
        """Name a pod if its devices tell it, and the job once nothing that may be in its name is awaited any more."""
        if life.kind != "pod":
            life.job = life.kind, str(life.start) if life.kind == "slurm" else f"{life.start:064x}"[:12]
            return
        common = set.intersection(*(self.view.get(device, set()) for device in life.devices)) if life.devices else set()
        candidates = {holder for holder in common if holder[1] == life.holder[1]}
        if not life.is_named and len(candidates) == 1:
            life.holder, life.is_named = candidates.pop(), True
        if life.is_named or self.now - life.found >= AWAITED:
            life.job = "pod", life.holder[1] if life.is_named else life.uid


@dataclass
class Kubelet:
    """As the node says."""

    node: Node

    @property
    def socket(self) -> Path:
        return self.node.socket

    def allocations(self) -> Allocations:
        if not self.node.is_up:
            raise KubeletError("it does not answer")
        holders = {device: sorted(pods) for device, pods in self.node.holders.items() if pods}
        return Allocations({d: tuple(Workload("pod", *pod, "main") for pod in pods) for d, pods in holders.items()}, 0)


def tell(node: Node, workloads: Workloads, caller: str) -> None:
    """Tell the registry what a caller wants, until nothing is left to be asked for but what hangs."""
    registry, deadline = workloads.registry, time.monotonic() + 20
    wants = {
        life.process: Want(life.pid, life.start, tuple((device,) for device in devices))
        for life, devices in node.wants[caller].items()
    }
    while True:
        registry.want(caller, wants)
        hung = {life.process for life in node.hanging if life.hang and life.hang.reached.is_set()}
        with registry._news:
            if registry._asking.keys() <= hung:
                if not registry._due:
                    break
                node.passed += 60.0  # only what hangs takes long, and never what a busy machine delays
            assert time.monotonic() < deadline, "others wait for a process that hangs"
            registry._news.wait(0.002)
    node.asked(caller)


def release(node: Node, workloads: Workloads, life: Life) -> None:
    """Let the reads of a process that hangs go on: of itself, if it is still there."""
    assert life.hang
    node.hanging.remove(life)
    if node.procfs.hangs.get(life.pid) is life.hang:
        del node.procfs.hangs[life.pid]
    life.hang.over.set()
    deadline = time.monotonic() + 20
    with workloads.registry._news:
        while life.process in workloads.registry._asking:
            assert time.monotonic() < deadline, "the thread has not gone on"
            workloads.registry._news.wait(0.01)
    if life.is_stuck:
        life.is_stuck = False
        node.answered_with(life, life.devices)
    for caller in CALLERS:
        if life in node.wants[caller]:
            tell(node, workloads, caller)


def close(workloads: Workloads, procfs: Procfs) -> None:
    """End the threads."""
    registry = workloads.registry
    if registry._thread:
        registry._thread.stopping.set()
        registry.want("the end", {"": Want(0)})
    for reader in procfs._in_time._idle:
        reader.leave()


def check(node: Node, workloads: Workloads) -> None:
    wanted = {life for each in node.told.values() for life in each}
    found = {life.process: facts(workloads, life) for life in wanted}
    assert found == {life.process: node.known.get(life) for life in wanted}


def facts(workloads: Workloads, life: Life) -> Facts | None:
    found = workloads.registry.get(life.process)
    if found is None:
        return None
    w = found.workload
    return w.kind, w.namespace, w.pod, w.command, w.job_kind, w.job.rpartition("/")[2], found.container_pid


@seeds(draws(150, 2000))
def test_each_process_is_who_it_was_when_it_was_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 0.02)
    node = Node(random.Random(seed), tmp_path)
    monkeypatch.setattr("gpugauge.workload.registry.time", SimpleNamespace(monotonic=lambda: node.passed))
    workloads = Workloads(node.procfs, kubelet_socket=node.socket, clock=lambda: node.now)
    workloads._orchestrators._kubelet = Kubelet(node)  # type: ignore[assignment]  # a stand-in
    every: list[Life] = []
    for _ in range(STEPS):
        node.now += node.dice.choice((1.0, 5.0, 20.0, 45.0))
        node.happen()
        every += [life for life in node.lives.values() if life not in every]
        if node.dice.random() < 0.4:
            node.refresh()
            workloads.refresh()
        for caller in node.dice.sample(CALLERS, node.dice.randint(1, 3)):
            if node.dice.random() < 0.5:
                node.want(caller, every[-6:])
            tell(node, workloads, caller)
        if node.hanging and node.dice.random() < 0.3:
            release(node, workloads, node.dice.choice(node.hanging))
        check(node, workloads)
    for life in [*node.hanging]:
        release(node, workloads, life)
    check(node, workloads)
    close(workloads, node.procfs)


def test_a_session_has_the_job_of_its_process_also_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 30)
    made = proc(tmp_path)
    made.process(41, cgroup=v2("/system.slice/slurmstepd.scope/job_4711/step_0"))
    shown = SESSION._replace(peer_pid=41, peer_start=5000)
    hidden = SESSION._replace(peer_pid=0, hello=Hello("b" * 32, 0, 1, facts={"SLURM_JOB_ID": "4712"}))
    sessions, workloads = FakeSessions(shown, hidden), Workloads(Procfs(str(made.root)))
    collector = TrainingCollector(sessions, lambda _: "shown", lambda _: workloads)

    def jobs() -> dict[str, str]:
        collector.collect(TICK)
        return {label: session.owner[1] for label, session in TICK.node.sessions.items()}

    named = {"shown": "4711", process_hash("b" * 32): "1000/4712"}
    assert jobs() == named
    shutil.rmtree(made.root / "41")
    assert jobs() == named
    sessions.sessions = tuple(session._replace(ended_at=1.0) for session in (shown, hidden))
    assert jobs() == named
    close(workloads, workloads.procfs)


def named(want: Want, job: str = "job") -> Identity:
    return Identity(Workload("slurm", user=str(want.pid), job=job))


def test_a_process_is_asked_for_when_it_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 30)
    asked, jobs, now, version = list[Want](), {7: "job", 8: ""}, [0.0], [0]

    def ask(want: Want) -> Identity:
        asked.append(want)
        return named(want, jobs[want.pid]) if want.pid in jobs else Identity()

    registry = Registry(ask, lambda: version[0], lambda: now[0])

    def want(caller: str, wants: Mapping[str, Want]) -> list[Want]:
        asked.clear()
        registry.want(caller, wants)
        return [*asked]

    on_one, sent = SEVEN._replace(devices=(GPU_0,)), SEVEN._replace(devices=(GPU_1,), sent={"RANK": "0"})
    assert want("process", {"7": SEVEN}) == [SEVEN]
    assert want("host", {"7": SEVEN}) == want("process", {"7": SEVEN}) == []
    assert want("process", {"7": on_one}) == [on_one]
    assert want("host", {"7": SEVEN}) == []  # it names no device
    assert want("training", {"7": sent}) == [sent._replace(devices=(GPU_0, GPU_1))]
    version[0] += 1
    assert len(want("host", {"7": SEVEN})) == 1
    now[0] = 60.0
    assert len(want("host", {"7": SEVEN})) == 1
    assert want("host", {"7": SEVEN}) == []

    for _ in range(2):  # while its job is not known, and while /proc does not show it
        assert want("host", {"8": Want(8), "0": Want(0)}) == [Want(8), Want(0)]
    assert (registry.get("8"), registry.get("0")) == (named(Want(8), ""), None)
    jobs[8] = "late"
    want("host", {"8": Want(8)})
    del jobs[8]  # it ends: nobody else has its name
    version[0] += 1
    want("host", {"8": Want(8)})
    assert registry.get("8") == named(Want(8), "late")
    want("host", {})
    assert (registry.get("8"), registry.get("7")) == (None, named(SEVEN))


def test_two_that_hang_stop_nobody_and_a_third_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.workload.registry._HANGING_SECONDS", 0.02)
    monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(guard, "_failed", {})
    monkeypatch.setattr(guard, "SETTLED_SECONDS", 0.0)
    ends = {pid: threading.Event() for pid in (1, 2, 4)}

    def ask(want: Want) -> Identity:
        if want.pid in ends:
            ends[want.pid].wait(60)
        return named(want)

    registry, wants = Registry(ask, lambda: 0, lambda: 0.0), dict[str, Want]()

    def until_known(*pids: int, hanging: int = 0) -> None:
        def is_known() -> bool:
            registry.want("host", wants)
            known = {pid for pid in range(9) if registry.get(str(pid))}
            return known == {*pids} and len(registry._asking) == hanging

        until(is_known)

    def failing() -> list[str]:
        return [each.name for each in guard.failed() if each.failing]

    wants.update({str(pid): Want(pid) for pid in (1, 2, 3)})
    until_known(3, hanging=2)
    wants.update({str(pid): Want(pid) for pid in (4, 5)})
    until_known(3, hanging=3)
    third = registry._thread
    assert third
    while third.guard.failures < 3:
        until_known(3, hanging=3)
    assert registry._thread is third  # it hangs, and is not replaced: the fifth waits
    assert failing() == ["registry"]
    ends[4].set()
    until_known(3, 4, 5, hanging=2)
    ends[1].set()
    ends[2].set()
    until_known(1, 2, 3, 4, 5)
    until(lambda: failing() == [])


@seeds(range(40))
def test_only_a_process_that_hangs_has_its_thread_replaced(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, end = random.Random(seed), threading.Event()
    now = [dice.uniform(0.0, 1e6)]
    monkeypatch.setattr("gpugauge.workload.registry.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(guard, "_failed", {})

    def ask(_: Want) -> Identity:
        end.wait(60)
        return Identity()

    registry, began = Registry(ask, lambda: 0, lambda: 0.0), now[0]
    registry.want("host", {"7": SEVEN})
    until(lambda: "7" in registry._asking)
    first, failures = registry._thread, 0
    for _ in range(5):
        now[0] += dice.choice((0.0, 0.5, 1.0, 1.5))
        registry.want("host", {"7": SEVEN})
        hangs = now[0] - began > 2.0
        failures += hangs
        assert (registry._thread is not first, first and first.guard.failures) == (hangs, failures)
    end.set()
    until(lambda: not registry._asking)
    assert registry._thread
    registry._thread.stopping.set()
    registry.want("the end", {"": Want(0)})
