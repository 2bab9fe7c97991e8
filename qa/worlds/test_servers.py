"""Servers, notebooks, displays and trainings beside each other on a simulated node: the status and the alerts agree."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tests.drawn import draws, seeds
from tests.needs import need

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.base.serving import IDLE_SECONDS, IDLE_USE
from gpugauge.node.node import Judged, Node, Verdict
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import ProcessStatus, Status
from gpugauge.status.node import build
from qa.bench.alerts.builders import machine, other, training
from qa.bench.alerts.record import TICK, Machine, Planned, record
from qa.bench.alerts.replay import replay

SECONDS = 90


@dataclass(frozen=True)
class Program:
    """`alert` is what is wrong with the program in the end, and `role` what it is."""

    command: str
    load: str
    role: str
    alert: str = ""
    kind: str = "compute"


_KERNEL = "/opt/conda/bin/python -m ipykernel_launcher -f kernel.json"
_COMPUTES = "{shape: square, high: 0.9, period: 600, duty: 0.2}"
PROGRAMS = (
    Program("python3 -m vllm.entrypoints.openai.api_server --model m", "0.42", "server"),
    Program("VLLM::EngineCore", "0.03", "server"),
    Program("tritonserver --model-repository=/models", "0.2", "server"),
    Program("tritonserver --model-repository=/models", "0", "server"),  # without torch it is not judged
    Program("python3 -m sglang.launch_server", "0", "server", "GpuHeldIdle"),
    Program(_KERNEL, "0", "notebook", "GpuHeldIdle"),
    Program(_KERNEL, _COMPUTES, "notebook"),
    Program("/usr/lib/xorg/Xorg -nolisten tcp", "0.02", "display", kind="graphics"),
    Program("python3 fit.py", "0.3", "training", "TrainingLoadLow"),
    Program("python3 fit.py", "0.9", "training"),
    Program("python3 eval.py", "0", "training", "GpuHeldIdle"),
)
HOOKED = (Program("{}", "", "training"), Program("{load: 1.6}", "", "training", "TrainingLoadLow"))


def drawn(seed: int) -> tuple[Planned, dict[str, Program]]:
    """Return a node with a program on each GPU, and the programs by their jobs."""
    dice = random.Random(seed)
    found = [*dice.sample(PROGRAMS, 4), dice.choice(HOOKED)]
    lines = []
    for index, program in enumerate(found):
        where, job = f"[{index}]", 500 + index
        if program in HOOKED:
            lines.append(training(100 + index, where, job, program.command))
        else:
            more = {"command": program.command, "kind": program.kind}
            lines.append(other(100 + index, where, job, program.load, **more))
    text = machine(*lines, count=len(found))
    return Planned("servers", "programs beside each other", {"n": text}, minutes=75), {
        str(500 + index): program for index, program in enumerate(found)
    }


def processes(status: Status) -> dict[str, ProcessStatus]:
    """Return the processes on GPUs by their Slurm jobs."""
    return {process.workload["job_id"]: process for gpu in status.gpus for process in gpu.processes}


def problems(status: Status) -> dict[str, str]:
    """Return the alert that belongs to each problem, by the job of its GPU or process."""
    on = {gpu.uuid: process.workload["job_id"] for gpu in status.gpus for process in gpu.processes}
    of = {"wasted": "TrainingLoadLow", "slowed": "TrainingLoadLow", "unjudged": "TrainingLoadLow"}
    return {
        on[uuid]: "GpuHeldIdle" if "does not use it" in problem.text else of.get(problem.kind, problem.kind)
        for problem in status.problems
        for uuid in problem.gpus
    }


@seeds(draws(4, 120))
def test_each_program_is_what_it_is_and_only_trainings_have_to_do_something(tmp_path: Path, seed: int) -> None:
    planned, programs = drawn(seed)
    node, history = Machine("n", planned, tmp_path), History()
    for second in range(0, SECONDS, TICK):
        node.now = float(second)
        history.feed(snapshot := node.tick())
    node.close()
    status = build(snapshot, history)
    shown = processes(status)

    assert {job: process.role for job, process in shown.items()} == {job: p.role for job, p in programs.items()}
    # Nothing is held idle for long yet.
    soon = {job: p.alert for job, p in programs.items() if p.alert == "TrainingLoadLow"}
    assert problems(status) == soon
    for job, program in programs.items():
        process = shown[job]
        said = f"{process.advice} {process.state_words} {process.limited_by_words}"
        assert (process.level in {"bad", "poor"}) == (job in soon and program in HOOKED)
        assert "DistributedDataParallel" not in said
        idle = process.state == "held_idle" and program.role != "display"
        assert ("gpugauge run" in said) == (program.role == "training" and program not in HOOKED and not idle)
        assert program.role == "training" or process.state_words == ("idle" if idle else program.role)
        assert idle or program.alert != "GpuHeldIdle"
    unknown = {job for job, p in programs.items() if p.role == "training" and p not in HOOKED and p.load != "0"}
    assert (" well" in status.answer) == (not soon and not unknown)


@pytest.mark.everything
@seeds(draws(1, 40))
def test_status_and_alerts_have_the_same_problems(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    planned, programs = drawn(seed)
    history, shown, tick = History(), [], Machine.tick

    def followed(node: Machine) -> Snapshot:
        snapshot = tick(node)
        history.feed(snapshot)
        if node.now > 60 * planned.minutes - 2 * TICK:
            shown.append(build(snapshot, history))
        return snapshot

    monkeypatch.setattr(Machine, "tick", followed)
    runs = replay(record(planned), rules.groups(Parameters()), need("promtool"))
    fired = {run.labels["workload_job"]: run.alert for run in runs if "workload_job" in run.labels}

    assert fired == {job: program.alert for job, program in programs.items() if program.alert}
    assert problems(shown[-1]) == fired


def fed(states: Sequence[str]) -> tuple[list[bool], list[float | None]]:
    """Return, for each verdict on a process in these states, whether the history finds its GPUs unused, and the share
    of the last 30 minutes in which it was idle, None while it is younger.
    """
    history, found, shares = History(), [], list[float | None]()
    window = round(IDLE_SECONDS / 5)
    for number, state in enumerate(states):
        node = Node(monotonic=5.0 * number, judged={"p": Judged(Verdict(state, "outside"))})
        history.feed(Snapshot(0.0, 5.0 * number, (), {}, node))
        found.append(history.unused("p"))
        last = states[max(0, number - window + 1) : number + 1]
        shares.append(sum(each == "held_idle" for each in last) / window if number >= window else None)
    return found, shares


@seeds(draws(10, 400))
def test_what_is_idle_for_long_is_what_the_rules_find_idle(seed: int) -> None:
    """The rules ask for a share of the last half hour; the status decides by the seconds of use as they come."""
    dice = random.Random(seed)
    states: list[str] = []
    while len(states) < 2500:
        used, pause = dice.choice(((0, 700), (1, 100), (1, 700), (30, 400), (200, 200), (3, 20), (700, 30)))
        states += ["unknown"] * used + ["held_idle"] * pause
    found, shares = fed(states)

    for now, share in zip(found, shares, strict=True):
        assert not now or share is None or share > 1 - 2.5 * IDLE_USE
        assert now or share is None or share < 1.0
    assert not any(now for now, share in zip(found, shares, strict=True) if share is None)
    # It changes seldom: a short use is no end of it.
    changes = sum(before != after for before, after in pairwise(found))
    assert changes <= 2 * sum(used == "unknown" != before for before, used in pairwise(["", *states]))


def test_a_notebook_is_a_problem_after_half_an_hour() -> None:
    found, _ = fed(["held_idle"] * 400)

    assert [found.index(True), all(found[361:])] == [360, True]
