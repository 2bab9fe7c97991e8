"""What a daemon keeps of drawn trainings: reports from it have the sums of the plans, through restarts and damage."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.drawn import draws, seeds
from tests.e2e.programs import GPUGAUGE, daemon, wait_for

from gpugauge import catalog
from gpugauge.cli.main import main
from gpugauge.daemon.trainings import TrainingsFile
from gpugauge.exposition.trainings import MAX_BYTES, Trainings, members
from gpugauge.metric import Family, HistogramValue, Metric
from gpugauge.report import build, jobs, kept, render, top
from gpugauge.report.kept import Kept
from gpugauge.report.prices import NO_PRICES
from gpugauge.report.source import Range
from gpugauge.snapshot import Section, Snapshot

NOW = 1_790_000_000
TICK, LINGER = 5, 300
CAUSES = ("data_loading", "host_bound", "unknown")
WATTS, STEP = 300.0, 0.25


@cache
def rows() -> dict[str, Metric]:
    return {row.name: row for row in catalog.metrics()}


@dataclass
class Plan:
    """A training: the job, when it runs, on which GPU, and the shares that it loses."""

    process: str
    job: str
    begin: int
    end: int
    gpu: str
    lost: dict[str, float]
    kind: str = "slurm"

    def samples(self, start: int, now: int) -> Iterator[tuple[str, dict[str, str], Any]]:
        """Yield its series as a daemon has them that began at `start`."""
        spent = min(now, self.end) - max(start, self.begin)
        if now < self.begin or start >= self.end or now > self.end + LINGER:
            return
        yield "training_seconds_total", {"state": "training"}, spent
        yield "training_gpu_held_seconds_total", {}, spent
        for cause, share in self.lost.items():
            yield "training_lost_seconds_total", {"cause": cause}, share * spent
        steps = round((min(now, self.end) - self.begin) / STEP)
        yield "torch_steps_total", {}, steps
        yield "torch_step_duration_seconds", {}, HistogramValue((0, steps), steps * STEP)
        if now < self.end:
            owner = {"workload_job_kind": self.kind, "workload_job": self.job, "command": "train.py", "rank": "0"}
            yield "torch_process_info", owner, 1
            yield "torch_run_info", {"gpugauge_run": f"run-{self.job}"}, 1
            yield "gpu_process_memory_used_bytes", {"uuid": self.gpu}, 1e9 + now - self.begin
        else:
            yield "training_end_info", {"reason": "finished", "exit_code": "0"}, 1


def snapshot(plans: list[Plan], start: int, now: int) -> Snapshot:
    """Return what a daemon has now that began at `start`."""
    found: dict[str, list[tuple[tuple[str, ...], Any]]] = {}

    def put(metric: str, value: Any, /, **labels: str) -> None:
        values = tuple(labels.get(label, "") for label in rows()[metric].labels)
        found.setdefault(metric, []).append((values, value))

    for plan in plans:
        for name, labels, value in plan.samples(start, now):
            put(name, value, process=plan.process, **labels)
    for gpu in {plan.gpu for plan in plans}:
        put("gpu_info", 1, uuid=gpu, name="NVIDIA H200", index="0")
        put("gpu_energy_joules_total", 1e6 + WATTS * (now - NOW + 1e6), uuid=gpu)
    families = tuple(Family(rows()[name], tuple(samples)) for name, samples in found.items())
    return Snapshot(now, now, (Section("all", families),))


@dataclass
class World:
    """The plans, the lives of the daemons, and for each the time of what the next one has of it."""

    plans: list[Plan]
    lives: list[tuple[int, int]]

    def of(self, plan: Plan) -> float:
        """Return the seconds of a training that some daemon has counted and written."""
        return float(sum(max(0, min(b, plan.end) - max(a, plan.begin)) for a, b in self.lives))


def drawn(draw: random.Random) -> World:
    length = draw.randrange(600, 4000)
    stops = sorted(draw.sample(range(100, length - 100), draw.randrange(3)))
    lives, start = [], NOW - length
    for stop in [*(NOW - length + each for each in stops), NOW]:
        lives.append((start, max(start, stop - draw.choice((0, 0, 200)) * (stop < NOW))))  # ended or was killed
        start = stop + draw.randrange(2, 90)
    plans = []
    for number in range(draw.randrange(1, 5)):
        begin = NOW - length + draw.randrange(-300, length - 200)
        cuts = sorted(draw.random() for _ in CAUSES)
        lost = dict(zip(CAUSES, (b - a for a, b in zip([0.0, *cuts], cuts, strict=False)), strict=True))
        end = begin + draw.randrange(60, length)
        plans.append(Plan(f"{draw.getrandbits(48):012x}", str(number % 2), begin, end, f"GPU-{number}", lost))
    return World(plans, [life for life in lives if life[0] < life[1]])


def body(world: World) -> bytes:
    """Return what the last daemon has, each of which reads the file of the one before."""
    data = b""
    for start, stop in world.lives:
        trainings = Trainings("node")
        trainings.load(data)
        for now in [*range(start, stop, TICK), stop]:
            data = trainings.body(snapshot(world.plans, start, now))
    return data


def reported(plans: list[Plan], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """Return what `gpugauge report` writes long after the last look of a daemon that has seen these trainings."""
    data = body(World(plans, [(NOW - 900, NOW)]))
    monkeypatch.setattr(kept, "request", lambda *_, **__: data)
    return CliRunner().invoke(main, ["report", "--url", "http://node", "--since", "3650d", *arguments])


def test_a_run_that_its_daemon_has_runs_however_late_its_samples_are(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, ended = Plan("aa", "1", NOW - 40, NOW + 999, "GPU-0", {}), Plan("bb", "2", NOW - 600, NOW - 90, "GPU-0", {})
    assert "still running" in reported([runs], monkeypatch, "1").output
    assert "still running" not in reported([ended], monkeypatch, "2").output

    again = Trainings("node")
    again.load(body(World([runs], [(NOW - 900, NOW)])))
    (kept_of_it,) = (document for _, document in members(again.body(None)))
    assert "live" not in kept_of_it  # the daemon that had it has ended, and maybe the training, too


def test_one_run_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Plan("aa", "1", NOW - 700, NOW - 400, "GPU-0", {}), Plan("bb", "1", NOW - 200, NOW + 9, "GPU-0", {})
    alone = reported([one], monkeypatch, "--compare", "1", "1")
    both = reported([one, two], monkeypatch, "--compare", "1", "1")

    assert (alone.exit_code, both.exit_code) == (1, 0)
    assert "only one run of Slurm job 1 is known, since 2026-09-21 14:01 UTC (train.py, node): name two" in alone.output
    assert "No change" in both.output


@seeds(draws(5, 300))
def test_sums_are_those_of_the_plans(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = drawn(random.Random(seed))
    data = body(world)
    monkeypatch.setattr(kept, "request", lambda *_, **__: data)
    source = Kept("http://node")
    seen = [plan for plan in world.plans if world.of(plan) > 2 * TICK and plan.begin < NOW - 2 * TICK]
    late = 2 * TICK * len(world.lives)  # a counter that has not risen above that of the daemon before shows no restart

    for name in {plan.job for plan in seen}:
        own = [plan for plan in world.plans if plan.job == name]
        job, found = jobs.of_job(source, name, Range(NOW - 86400, NOW + 1))
        made = build.report(job, found, NOW, source=source)
        assert made.gpu_hours is not None
        held = sum(map(world.of, own))
        assert 3600 * made.gpu_hours.held == pytest.approx(held, abs=late * len(own) + 1)
        for cause in CAUSES:
            lost = sum(plan.lost[cause] * world.of(plan) for plan in own)
            assert 3600 * made.gpu_hours.lost.get(cause, 0.0) == pytest.approx(lost, abs=late * len(own) + 1)
        assert made.curves is None
        last = {
            plan.process: max(min(b, plan.end) for a, b in world.lives if a < plan.end and b > plan.begin)
            for plan in own
            if world.of(plan)
        }
        steps = sum((last[plan.process] - plan.begin) / STEP for plan in own if plan.process in last)
        assert made.steps == pytest.approx(steps, abs=1)  # the hook counts, whatever becomes of daemons
        begun = {plan.process: max(plan.begin, world.lives[0][0]) for plan in own}
        joules = sum(WATTS * (last[p] - begun[p]) for p in last)
        assert made.energy_joules is None or made.energy_joules == pytest.approx(joules, abs=3 * WATTS * (late + 200))
        assert made.running or all(plan.end <= world.lives[-1][1] for plan in own) or world.lives[-1][1] < NOW
        assert not made.running or any(plan.end > NOW - 150 for plan in own)
        of_run = kept.of(Kept("http://node", run=f"run-{name}"))
        assert of_run is not None
        assert {use.process for use in of_run.processes} == {use.process for use in made.processes}
    if seen:
        rows_of = top.read(source, Range(NOW - 86400, NOW + 1), "job", NO_PRICES).rows
        assert {row.name for row in rows_of} >= {f"slurm:{plan.job}" for plan in seen}


@seeds(draws(2, 60))
def test_a_damaged_file_is_replaced(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(seed)
    data = bytearray(body(drawn(draw)) or b"nothing")
    if draw.random() < 0.5:
        del data[draw.randrange(len(data)) + 1 - (draw.random() < 0.2) :]
    else:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path = tmp_path / "trainings.jsonl.gz"
    path.write_bytes(data)
    try:
        usable = [document["process"] for _, document in members(bytes(data))]
    except ValueError:
        usable = []
    caplog.clear()
    plans = [Plan("a" * 12, "1", NOW - 100, NOW - 20, "GPU-1", {})]
    now = SimpleNamespace(value=snapshot(plans, NOW - 200, NOW - 50))
    file = TrainingsFile(path, lambda: now.value)

    file.start()
    wait_for(lambda: file._trainings.live, 5, "it has looked")
    now.value = snapshot(plans, NOW - 200, NOW)
    file.stop()

    assert len([each for each in caplog.records if "it is replaced" in each.message]) == (not usable and bool(data))
    assert [document["process"] for _, document in members(path.read_bytes())] == [*usable, "a" * 12]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_the_file_is_bounded_and_keeps_the_newest() -> None:
    draw, trainings, longest = random.Random(1), Trainings("node"), 0
    cuts = dict.fromkeys(CAUSES, 0.1)
    for number in range(1500):
        text = "".join(draw.choices("abcdefghij", k=2500))  # what does not pack
        plan = Plan(f"{number:012x}", text, number, number + 10, "GPU-1", cuts)
        data = trainings.body(snapshot([plan], 0, number + 9))
        longest = max(longest, len(data))
    found = [document["process"] for _, document in members(data)]

    assert MAX_BYTES - 5000 < longest <= MAX_BYTES
    assert found == [f"{number:012x}" for number in range(1500 - len(found), 1500)]


PROGRAM = """import sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
end = time.monotonic() + 12
while time.monotonic() < end:
    model(torch.ones(8)).sum().backward(), optimizer.step(), time.sleep(0.02)
sys.exit(3)
"""


@pytest.mark.e2e
@pytest.mark.everything
@pytest.mark.timeout(300)
def test_run_writes_the_report_of_its_own_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    state = tmp_path / "trainings"
    with daemon(tmp_path, "--simulate=healthy", f"--path.state={state}") as running:
        command = [GPUGAUGE, "run", "--url", running.url, "--report", str(tmp_path / "report.json"), "--"]
        environ = {"PATH": "/usr/bin:/bin", "GPUGAUGE_HOOK_SOCKET": str(running.socket)}
        program = [*command, sys.executable, str(tmp_path / "train.py")]
        done = subprocess.run(program, env=environ, timeout=120, check=False)
        made = json.loads((tmp_path / "report.json").read_text())
        asked = [GPUGAUGE, "report", made["job"], "--url", running.url, "--format", "json"]
        again = json.loads(subprocess.run(asked, capture_output=True, timeout=60, check=True).stdout)
        assert running.stop(signal.SIGTERM)[0] == 0
    kinds = Counter(document["process"] for _, document in members(state.read_bytes()))

    assert done.returncode == 3
    assert [use["process"] for use in made["processes"]] == [use["process"] for use in again["processes"]]
    assert kinds[made["processes"][0]["process"]] == 1
    assert made["end_words"] == ["error, exit code 3"] or made["end_words"], made["end_words"]
    assert made["steps"] > 100
    assert made["steps"] == again["steps"]


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("slurm", "4711", "Slurm job 4711\nprogram train.py; 1 GPU on"),
        ("declared", "ann/llama", "job llama\nprogram train.py; 1 GPU on"),
        ("launch", "host/1000/bash-1f", "train.py\n1 GPU on"),  # the shell of a user is no name of a training
    ],
)
def test_the_report_of_a_run_names_its_job_and_its_program(
    kind: str, name: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan("a" * 12, name, NOW - 100, NOW - 20, "GPU-1", {})
    data = body(World([replace(plan, kind=kind)], [(NOW - 200, NOW)]))
    monkeypatch.setattr(kept, "request", lambda *_, **__: data)
    made = kept.of(Kept("http://node", run=f"run-{name}"))

    assert made is not None
    assert render.as_text(render.blocks(made), 200).startswith(head)
