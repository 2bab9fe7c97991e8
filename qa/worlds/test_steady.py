"""What the views say of a training at its end, how often they say it, and of the rest of its steps."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tests.simulation import scenario

from gpugauge.collectors.training import verdict
from gpugauge.node.node import Diagnosis
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.status.details import details
from gpugauge.status.model import Inside, ProcessStatus, Status
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import processes
from gpugauge.terminal.table import table
from gpugauge.verdict import loaders
from gpugauge.verdict.loaders import Load, diagnose
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from gpugauge.wire.shares import divided, sentence
from qa.worlds.looks import looks


def named(status: Status, command: str) -> ProcessStatus:
    return next(p.facts for p in processes(status) if p.facts.command == command)


ENDING = """
gpus: {model: h100, count: 1}
processes:
  - {pid: 100, gpus: [0], memory: 20GiB, end: 120, command: python3 ended.py, pipeline: {load: 2.0}}
"""


def test_the_last_advice_stays_after_the_end(tmp_path: Path) -> None:
    *_, before, _, _, after = looks(scenario(ENDING), tmp_path / "node", 60, 136, 10)
    lived, ended = named(before, "ended.py"), named(after, "ended.py")

    assert (lived.ended, ended.limited_by) == (None, None)
    assert ended.ended is not None
    assert lived.changes == ended.changes
    assert lived.gain_words == ended.gain_words
    assert ended.advice == f"next time: {lived.advice}"
    shown = "\n".join(process_screen(processes(after)[0], after.timestamp, 200, colour=False))
    assert shown.index("What to change next time") < shown.index(f"1. {lived.changes[0].change}")
    for text in (table(after, False, 0.0, 300), content(after, None, NO_LINKS)[0]):
        assert f"next time: {lived.advice}" in text
        assert f"{lived.gain_words}." in text


def test_a_cause_is_said_once_above_the_table(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("node"), tmp_path / "node", 160, 161, 1)
    words = named(status, "finetune.py").limited_by_words or ""
    page = re.sub('<span class="summary">[^<]*', "", content(status, None, NO_LINKS)[0])  # of GPUs that are folded

    assert [text.count(words) for text in (table(status, False, 0.0, 400), page)] == [2, 2]  # the answer, the problem


NUMBER = re.compile(r"(?:up to|at least|about) ([\d.]+)(?: to ([\d.]+))? times")


@pytest.mark.parametrize("name", ["bottlenecks", "loaders"])
def test_no_gain_is_larger_than_the_lost_share_beside_it_allows(name: str, tmp_path: Path) -> None:
    """The gain is held while shares vary, and has bounds: what is shown together fits together."""
    seen = 0
    for status in looks(load_scenario(name), tmp_path / "node", 40, 140, 10):
        for process in (one.facts for one in processes(status)):
            lost, numbers = process.lost_ratio, NUMBER.findall(process.gain_words or "")
            if lost is None or lost >= 1.0:
                continue
            most = 1.0 / (1.0 - lost)
            for change in process.changes:
                if change.gain and change.cause != "precision_unused":
                    assert max(change.gain.expected, change.gain.upper) <= most + 1e-3
            for shown in (float(number) for pair in numbers for number in pair if number):
                seen += 1
                assert shown <= most * 1.05, (process.command, lost, process.gain_words)  # two digits
    assert seen > 10


def test_the_number_of_workers_stays_through_minutes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that finds no wait, or another reason for it, does not change the number of the next one."""
    dice, found = random.Random(7), list[int]()

    def seldom(load: Load, before: Diagnosis | None = None) -> Diagnosis | None:
        if dice.random() < 0.4:
            return dice.choice([None, Diagnosis(loaders.BUSY_CPUS), Diagnosis(loaders.TOO_FEW_CPUS, 4, 1.0, 1.0)])
        varied = load._replace(cpu=load.cpu * dice.uniform(0.78, 1.0))
        one = diagnose(varied, before)
        found.extend([one.workers] if one and one.workers and (one.speedup or 0.0) > 1.0 else [])
        return one

    monkeypatch.setattr(verdict, "diagnose", seldom)
    list(looks(load_scenario("bottlenecks"), tmp_path / "node", 40, 160, 60))

    assert len(found) > 10
    assert len(set(found)) == 1


def test_a_training_without_its_cpus_says_so(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("bottlenecks"), tmp_path / "node", 100, 101, 1)
    starved, words = named(status, "finetune.py"), "% waiting for a CPU"

    assert sum(starved.rest_shares.values()) == pytest.approx(starved.step_shares["rest"], abs=1e-3)
    assert starved.rest_shares["runnable"] > 0.2
    (process,) = [process for process in processes(status) if process.facts.process == starved.process]
    screen = "\n".join(process_screen(process, status.timestamp, 200, colour=False))
    assert [t.count(words) for t in (table(status, False, 0.0, 400), content(status, None, NO_LINKS)[0], screen)] == [
        1
    ] * 3


@pytest.mark.parametrize(
    ("found", "thread", "whole", "words"),
    [
        (
            {"data": 0.2, "rest": 0.8},
            {"running": 30.0, "runnable": 10.0, "asleep": 0.0},
            40.0,
            "20 % waiting for data, 60 % own code and computation, 20 % waiting for a CPU",
        ),
        ({"rest": 1.0}, {"running": 1.0, "asleep": 3.0}, 4.0, "75 % asleep, 25 % own code and computation"),
        # Most of the time was not seen, nothing of it, and ranks that wait for each other.
        ({"data": 0.2, "rest": 0.8}, {"running": 3.0}, 40.0, "20 % waiting for data, 80 % the rest"),
        ({"data": 0.2, "rest": 0.8}, {}, 40.0, "20 % waiting for data, 80 % the rest"),
        ({"peers": 0.2, "rest": 0.8}, {"running": 40.0}, 40.0, "20 % waiting for other ranks, 80 % the rest"),
        ({"data": 1.0, "rest": 0.0}, {"running": 40.0}, 40.0, "100 % waiting for data, 0 % the rest"),
    ],
)  # fmt: skip
def test_the_rest_is_divided_where_it_is_known(
    found: dict[str, float], thread: dict[str, float], whole: float, words: str
) -> None:
    assert sentence(*divided(found, thread, whole)) == words


def test_errors_of_the_allocator_are_facts() -> None:
    process = ProcessStatus(process="p", inside=Inside(ooms=2.0, alloc_retries=0.0))

    assert details(process, 0.0) == ["2 out-of-memory errors"]
