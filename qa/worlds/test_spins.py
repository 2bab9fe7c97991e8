"""A collective that never ends in trainings without the hook, beside programs that draw little for another reason."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.collectors.training.test_training import TICK
from tests.drawn import draws, seeds
from tests.needs import need

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.settings.model import Settings, Verdict
from qa.bench.alerts.replay import replay
from qa.worlds.answering import COLLECTORS, moments
from qa.worlds.fault_histories import SCRAPE, story_of

STALLED = 300.0  # seconds until a training is stalled
LATE = 90.0  # a window, and some verdicts
SEEN = COLLECTORS | {"host", "training", "verdict"}
MODELS = ("h100", "h200", "a100", "b200")


def ranks(dice: random.Random, pid: int, gpus: list[int], rest: str) -> str:
    """Return a job: a process on each GPU, or one on all."""
    each = ", per_gpu: 1" if dice.random() < 0.6 else ""
    return f"  - {{pid: {pid}, gpus: {gpus}{each}, memory: 20GiB, cgroup: /job-{pid}, {rest}}}\n"


def training(dice: random.Random, pid: int, gpus: list[int], phases: str = "") -> str:
    pipeline = f"{{world_size: {max(2, len(gpus))}, load: {dice.uniform(0.0, 0.4):.2f}}}"
    return ranks(dice, pid, gpus, f"hook: false, pipeline: {pipeline}{f', phases: {phases}' if phases else ''}")


def level(intensity: float, more: str = "") -> str:
    return f"load: {{shape: constant, level: 1.0}}, intensity: {intensity:.2f}, command: python3 train.py{more}"


def weak(dice: random.Random, pid: int, gpus: list[int], at: float) -> str:
    """A miner, or a server: busy all the time, at a steady and low power from its start on."""
    return ranks(dice, pid, gpus, level(dice.uniform(0.05, 0.6)))


def successor(dice: random.Random, pid: int, gpus: list[int], at: float) -> str:
    """Another program of the job, which draws less."""
    first, second = (f"  - {{pid: {pid + 20 * n}, gpus: {gpus}, memory: 20GiB, cgroup: /job-{pid}, " for n in (0, 1))
    return f"{first}{level(0.9, f', end: {at}')}}}\n{second}{level(0.2, f', start: {at + 1}')}}}\n"


def fades(dice: random.Random, pid: int, gpus: list[int], at: float) -> str:
    """A job whose load falls, and its power with it."""
    low = dice.uniform(0.05, 0.9)
    points = f"[[0, 1.0], [{at}, 1.0], [{at + 1}, {low:.2f}], [{at + 2}, {low:.2f}]]"
    return ranks(
        dice, pid, gpus, f"load: {{shape: points, points: {points}}}, intensity: 0.9, command: python3 train.py"
    )


def idle(dice: random.Random, pid: int, gpus: list[int], at: float) -> str:
    """A training that stalls without a kernel on its GPUs."""
    return training(dice, pid, gpus, f"{{stalled_at: {at}}}")


def healthy(dice: random.Random, pid: int, gpus: list[int], at: float) -> str:
    return training(dice, pid, gpus, dice.choice(("", "{every: 60, evaluating: 20, checkpointing: 5}")))


OTHERS: tuple[Callable[[random.Random, int, list[int], float], str], ...] = (weak, successor, fades, idle, healthy)


@seeds(draws(2, 150))
def test_only_what_waits_after_work_is_stalled(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    at, count = float(dice.randrange(70, 200)), dice.randrange(1, 5)
    spins, other = list(range(count)), list(range(count, count + dice.randrange(1, 3)))
    kind = dice.choice(OTHERS)
    text = f"gpus: {{model: {dice.choice(MODELS)}, count: {len(spins + other)}}}\nprocesses:\n"
    text += training(dice, 100, spins, f"{{stalled_at: {at}, spins: true}}") + kind(dice, 200, other, at)

    for moment in moments(text, tmp_path, monkeypatch, at + STALLED + 2 * LATE, 5.0, collectors=SEEN):
        gpus = {gpu["index"]: {p["pid"]: p["state"] for p in gpu["processes"]} for gpu in moment.facts["gpus"]}
        stalled = {pid for found in gpus.values() for pid, state in found.items() if state == "stalled"}
        mine = {pid for pid in stalled if pid < 200}
        assert stalled == mine, (seed, kind.__name__, moment.second, text)
        if moment.second < at + STALLED or count == 1:  # one GPU waits for no other
            assert not mine, (seed, moment.second, text)
        elif moment.second > at + STALLED + LATE:
            assert all(set(gpus[gpu].values()) == {"stalled"} for gpu in spins), (seed, moment.second, text)

    assert {n for (_, n), value in moment.of("training_limited_by").items() if value and n == "collective"} == (
        {"collective"} if count > 1 else set()
    )


@pytest.mark.e2e
def test_the_job_has_one_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes, at = 50, 15
    text = "gpus: {model: h100, count: 2}\nprocesses:\n"
    text += training(random.Random(1), 100, [0, 1], f"{{stalled_at: {60 * at}, spins: true}}")
    groups: dict[str, Any] = rules.groups(Parameters())
    wanted = {row.name for row in catalog.metrics()} & set(re.findall(r"\b[a-z]+_\w+", str(groups)))
    scrapes = (
        (int(moment.second // SCRAPE), moment.snapshot)
        for moment in moments(text, tmp_path, monkeypatch, 60.0 * minutes, float(SCRAPE), collectors=SEEN)
    )

    fired = replay(story_of("spins", scrapes, wanted, minutes), groups, need("promtool"))

    (begin,) = {run.begin for run in fired if run.alert == "TrainingStalled"}
    assert {run.alert for run in fired} == {"TrainingStalled"}, fired
    assert at + 10 <= begin <= at + 20


@seeds(range(20))
def test_the_settings_of_the_verdict_are_applied(seed: int) -> None:
    dice, asked = random.Random(seed), list[object]()

    class Asker:
        def ask(self, *question: object) -> dict[str, object]:
            asked.append(question)
            return {}

    collector = VerdictCollector(asker=Asker())  # type: ignore[arg-type]  # a double
    collector.collect(TICK)
    seconds, asks = dice.choice((5.0, 300.0, 900.0)), dice.random() < 0.5
    collector.configure(Settings(verdict=Verdict(stalled_seconds=seconds, enable_ras=asks)))
    collector.collect(replace(TICK, monotonic=10.0))
    assert (collector.stalled_seconds, len(asked)) == (seconds, asks)
