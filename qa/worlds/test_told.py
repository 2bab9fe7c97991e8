"""What is told of a training at each time of its life: before a verdict, while it waits, after its end."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.collectors.proctree import CPU, write
from tests.collectors.training.test_advice import node
from tests.drawn import seeds
from tests.status.test_advice import host
from tests.verdict.test_loader_facts import BASE, SPAN, counters, section

from gpugauge.collectors.process.host_scan import HostScan
from gpugauge.collectors.training.advice import Advices
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.faults.repair import ANY_SITE
from gpugauge.node.node import Diagnosis, Gain, Judged, Node, Use, Verdict
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session
from gpugauge.snapshot import Snapshot
from gpugauge.status.answer import answer
from gpugauge.status.details import remark
from gpugauge.status.history import History
from gpugauge.status.model import FaultStatus, GpuStatus, ProcessStatus, Status, as_json, decoded
from gpugauge.status.problems import training_problems
from gpugauge.status.processes import processes_of
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import Process
from gpugauge.terminal.screen import process_lines
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.loader_facts import load
from gpugauge.verdict.loaders import BUSY_CPUS, CHANGES, TOO_FEW_CPUS, TRAINING_THREAD
from gpugauge.web.page.links import Links
from gpugauge.web.page.process import advice_words
from gpugauge.wire import messages as wire
from gpugauge.workload.identity import Workload
from gpugauge.workload.processfiles import Bounds, HostProcess
from gpugauge.workload.procfs import Procfs, Stat
from qa.worlds.nodes import NOW
from qa.worlds.processes import Drawn
from qa.worlds.scraped import node_of


def screen(**facts: Any) -> str:
    process = Drawn("train.py", {}, None).process()
    known = decoded(ProcessStatus, {**as_json(process.facts), **facts})
    return "\n".join(process_screen(Process(known), NOW, 200, colour=False))


@pytest.mark.parametrize(
    ("fault", "saved"),
    [
        (FaultStatus(grave=True, text="the driver requires a reset", action="reset"), True),
        (FaultStatus(grave=False, text="a faulty memory row waits", action="reset_later"), False),
    ],
)
def test_a_program_on_a_gpu_that_must_be_repaired_saves_a_checkpoint_first(fault: FaultStatus, *, saved: bool) -> None:
    process = Drawn("train.py", {}, None).process()
    gpus = [GpuStatus(uuid="GPU-0", index=0), GpuStatus(uuid="GPU-1", index=1, faults=(fault,))]

    shown = "\n".join(process_screen(replace(process, gpus=gpus), NOW, 200, colour=False))
    assert ("1. save a checkpoint and end it, for the repair of GPU 1: the driver requires" in shown) == saved


ON_CPU = {"state": "training_on_cpu", "state_words": "on the CPU", "level": "good"}


def test_before_the_first_verdict_nothing_limits_and_nothing_is_advised() -> None:
    shown = screen(**ON_CPU, judging_since=NOW - 9, data_wait_ratio=0.97)

    assert "  not judged yet (a verdict takes 25 s of reports); so far 97 % waiting for data\n" in shown
    assert "its waits" not in shown
    assert "What to change" not in shown

    advices, (early, late) = Advices(lambda: ANY_SITE), (node(), node(seconds=1.0))
    for judged, on in ((True, early), (False, late)):
        on.judged = {"p": on.judged["p"]._replace(early=judged)}
    assert advices.of(early, {}) == {"p": {}}
    assert advices.of(late, {})["p"]


_EARLY = ("torch_phase_seconds_total", "torch_data_wait_seconds_total")


def test_waits_and_batches_are_of_the_same_time() -> None:
    """The first report of a loader comes later than that of the waits for it."""
    window, growth = Window(), counters(random.Random(1), BASE, 0.0)
    for at in range(0, 20, 5):
        early = {key: at * rate for key, rate in growth.items() if key[0] in _EARLY or at >= 5}
        window.add(node_of([section(early, "2")], monotonic=float(at)))
    found = load(window, "p", Evidence(SPAN, inside=True))

    assert found is not None
    assert abs(found.wait - BASE.wait) < 0.001


@pytest.mark.parametrize(
    ("data", "cpu", "words"),
    [
        (0.1, 0.71, "waits for a CPU 71 % of its time"),
        (0.61, 0.19, "waits for data 61 % of its time"),
        (0.47, 0.39, "waits for data 47 % of its time, and for a CPU 39 %"),
        (0.24, 0.31, "waits for a CPU 31 % of its time, and for data 24 %"),
    ],
)
def test_the_waits_of_a_training_on_the_cpu_are_named_in_every_view(data: float, cpu: float, words: str) -> None:
    """All of them, the longest first, with the change for each."""
    found = Diagnosis(TRAINING_THREAD, 1, 1.4, 1.4)
    judged = Judged(
        Verdict("training_on_cpu", "inside"),
        {"data": data, "rest": 1 - data},
        rest={"runnable": cpu, "running": 1 - data - cpu},
        loader=found,
    )
    session = Session(wire.Hello("s", 0, facts={"command": "a.py"}), 1, 0, wire.Snap("s", 1))
    here = Node(NOW, 100.0, sessions={"p": session}, judged={"p": judged})
    history = History()
    for at in (0.0, 100.0):
        history.feed(Snapshot(NOW, at, (), {}, node=replace(here, monotonic=at)))
    (process,) = processes_of(here, history, NOW)
    status = Status(answer="", timestamp=NOW, version=None, without_gpu=(process,))
    (problem,) = training_problems(status)
    shown = "\n".join(process_screen(Process(process), NOW, 200, colour=False))

    assert process.level == "poor"
    assert problem.text == remark(process) == words
    assert answer(status, []).endswith(f"a.py {words}")
    assert re.search(rf"it {words}( \[data_loading\])?; there is no GPU here", shown)
    named = ["for data" in words, "for a CPU" in words]
    changes = {"num_workers=1": named[0], CHANGES[BUSY_CPUS]: named[1]}
    places = [(process.advice or "").find(change) for change in changes]
    assert [place >= 0 for place in places] == named
    if all(named):
        assert (places[0] < places[1]) == (data > cpu)
    assert problem.advice == process.advice
    assert (
        process.runbook == f"TrainingLimitedBy{'DataLoading' if words.startswith('waits for data') else 'CpuLimited'}"
    )
    assert shown.index("  1. ") + len("  1. ") == shown.index(process.changes[0].change)


def waiting(dice: random.Random) -> tuple[ProcessStatus, int, int]:
    """Return a training on the CPU that waits for most of its time, with the CPUs that it may use and that it needs."""
    threads, workers, cpus = dice.randint(1, 4), dice.choice([0, 0, 1, 4]), dice.randint(1, 9)
    data = dice.uniform(0.05, 0.9)
    cpu = dice.uniform(max(0.0, 0.55 - data), 0.95 - data)
    few = Diagnosis(TRAINING_THREAD, workers + 1, 1.4, 1.4)
    loader = dice.choice([None, Diagnosis(BUSY_CPUS), Diagnosis(TOO_FEW_CPUS), few])
    judged = Judged(
        Verdict("training_on_cpu", "inside"),
        {"data": data, "rest": 1 - data},
        rest={"runnable": cpu, "running": 1 - data - cpu},
        gains={"cpu_limited": Gain(1.5, 1.4, 1.6, "cpu")} if dice.random() < 0.2 else {},
        loader=loader,
    )
    facts = {"command": "a.py", "torch_threads": f"{threads}", "loader_workers": f"{workers}"}
    session = Session(wire.Hello("s", 0, facts=facts), 1, 0, wire.Snap("s", 1))
    here = Node(NOW, 100.0, sessions={"p": session}, judged={"p": judged}, hosts={"p": host(bounds=Bounds(cpus))})
    history = History()
    for at in (0.0, 100.0):
        history.feed(Snapshot(NOW, at, (), {}, node=replace(here, monotonic=at)))
    (process,) = processes_of(here, history, NOW)
    return process, cpus, threads + workers


@seeds(range(100))
def test_the_link_of_a_training_on_the_cpu_is_about_its_advice(seed: int) -> None:
    process, cpus, need = waiting(random.Random(seed))
    first, _, of_cpus = process.changes[0], *("TrainingLimitedByDataLoading", "TrainingLimitedByCpuLimited")
    page = advice_words(process, Links("https://runbook"))
    shown = " ".join("\n".join(process_screen(Process(process), NOW, 400, colour=False)).split())

    about_cpus = first.topic == "crowded" or first.cause == "cpu_limited"
    assert (process.runbook == of_cpus) == about_cpus == ("CPU" in first.change), first
    assert f"#{(process.runbook or '').lower()}" in page
    assert not about_cpus or "num_workers" not in first.change
    if first.topic == "crowded" and " need " in first.change:
        assert f"need {need}" in first.change
        assert first.change.startswith(("at least", "fewer programs")[need <= cpus]), first
        assert f" {cpus} CPU" in first.change
    # A gain, or the most that the waits allow, which are all of its steps but its own work.
    waits = process.data_wait_ratio or 0.0, process.rest_shares["runnable"]
    assert "not decided" not in shown
    assert first.most is None or 1 < first.most <= 1 / (1 - sum(waits)) + 1e-9
    assert process.gain_words
    assert all(shown.count(step) == 1 for step in first.steps)


def test_waits_of_about_half_of_the_time_do_not_come_and_go() -> None:
    history, levels = History(), []
    session = Session(wire.Hello("s", 0, facts={"command": "a.py"}), 1, 0, wire.Snap("s", 1))
    for number, data in enumerate((0.3, 0.3, 0.3, 0.52, 0.48, 0.51, 0.47, 0.4)):
        judged = Judged(Verdict("training_on_cpu", "inside"), {"data": data, "rest": 1 - data})
        here = Node(NOW, 30.0 * number, sessions={"p": session}, judged={"p": judged})
        history.feed(Snapshot(NOW, here.monotonic, (), {}, node=here))
        levels += [process.level for process in processes_of(here, history, NOW)]

    assert levels[3:] == ["poor"] * 4 + ["good"]


def test_a_training_without_steps_is_said_to_make_none_before_it_is_stalled() -> None:
    """Steps that are slow by themselves are none that lack."""
    still = screen(**ON_CPU, last_step=NOW - 100, step_seconds=0.036)
    slow = screen(**ON_CPU, last_step=NOW - 100, step_seconds=30.0)

    words = "no step for 1.7 min (its steps take 36 ms); by default stalled after 5.0 min"
    assert still.count(words) == 2
    assert "its waits" not in still
    assert "nothing was found" not in still
    assert "last step 1.7 min ago" in slow
    assert "its waits take less than half of its time" in slow


def test_an_ended_training_keeps_its_owner() -> None:
    stat = Stat("S", 1, 0, 0.0, 0.0, 1, 1, 0, 1, 1, terminal=False)
    host = HostProcess("p", 7, stat, workload=Workload("user", user="ann", command="a.py"))
    session = Session(wire.Hello("s", 0), 1, 0, wire.Snap("s", 1))
    judged = {"p": Judged(Verdict("training", "inside"))}
    runs = Node(NOW, 0.0, sessions={"p": session}, judged=judged, hosts={"p": host})
    over = Node(NOW, 99.0, sessions={"p": session._replace(ended_at=NOW - 30, end_reason="killed")})
    history = History()
    for here in (runs, over):
        history.feed(Snapshot(NOW, here.monotonic, (), {}, node=here))
    (process,) = processes_of(over, history, NOW)

    assert process.workload["user"] == "ann"
    killed = replace(process, end_words="killed by signal 15 (SIGTERM)")
    ((_, line, _),) = process_lines([Process(killed)], NOW, 400)[1]
    assert line.count("killed") == 1


def test_loader_workers_that_outlive_their_training_are_none(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 10)):
        write(tmp_path, pid, maps=CPU, parent=parent)
    scan = HostScan(Procfs(str(tmp_path)))
    assert [process.pid for process in scan.scan([], 0.0)] == [10]

    shutil.rmtree(tmp_path / "10")
    for pid in (11, 12):
        write(tmp_path, pid, maps=CPU, parent=1)
    assert scan.scan([], 5.0) == ()


def test_two_causes_have_their_shares_and_none_is_said_to_take_little() -> None:
    causes = {"data_loading": 0.5, "host_bound": 0.21, "unknown": 0.1}
    both = screen(limited_by="unknown", limited_by_words="a, and b", lost_ratio=0.81, causes=causes, evidence="c")
    one = screen(limited_by="data_loading", limited_by_words="a", lost_ratio=0.81, causes=causes, evidence="c")

    assert "it a, and b: 81 % of its GPU time is lost (50 % waits for its data loader, 21 %" in both
    assert "it a: 81 % of its GPU time is lost (50 % waits for its data loader, 21 %" in one
    assert "less than 5 % of its GPU time is lost to each cause" in screen(causes={})
    for facts in ({"causes": {"transfer": 0.06}}, {"causes": {}, "undecidable": ["transfer"]}, {"causes": None}):
        assert "no cause is large enough to be named" in screen(**facts)


def test_runs_of_one_program_are_one_problem_only_where_one_advice_is_about_them() -> None:
    def problems(*of: tuple[float, str, int]) -> list[tuple[str, str | None]]:
        slow = ProcessStatus(process="", command="a.py", level="bad", state="training", limited_by_words="is slow")
        runs = [
            replace(slow, process=f"p{at}", pid=at, lost_ratio=lost, advice=advice, world_size=ranks)
            for at, (lost, advice, ranks) in enumerate(of, 1)
        ]
        found = training_problems(Status(answer="", timestamp=0.0, version=None, without_gpu=tuple(runs)))
        return [(each.detail or "", each.advice) for each in found]

    assert problems((0.8, "dump 1", 1), (0.85, "dump 2", 1)) == [
        ("82 % of its GPU time is lost, pid 1 and 1 more process", "dump 1")
    ]
    apart = [(f"{lost} % of its GPU time is lost, pid {pid}", "x") for lost, pid in ((50, 2), (80, 1))]
    assert problems((0.8, "x", 1), (0.5, "x", 1)) == apart
    assert len(problems((0.8, "16 workers", 1), (0.8, "a faster dataset", 1))) == 2
    assert len(problems((0.8, "16 workers", 2), (0.3, "a faster dataset", 2))) == 1, "ranks of one training"


@seeds(range(40))
def test_the_advice_is_about_the_gpus_that_a_process_uses(seed: int) -> None:
    dice, one = random.Random(seed), node(main="transfer")
    lanes = {f"GPU-{index}": dice.choice((4, 8, 16)) for index in range(3)}
    own = dice.sample(sorted(lanes), dice.randint(1, 3))
    one.devices = tuple(
        Device(uuid, True, "ok", DeviceReading(pcie_width=width, pcie_width_max=16), {})
        for uuid, width in lanes.items()
    )
    one.uses = {("p" if uuid in own else "q", uuid): Use(1, None) for uuid in lanes}

    text = Advices(lambda: ANY_SITE).of(one, {})["p"]["transfer"]

    narrow = min(lanes[uuid] for uuid in own)
    assert re.findall(r"only (\d+) of 16 lanes", text) == [str(narrow)] * (narrow < 16)
