"""A training program chooses the texts of its facts: whatever they are, each process is judged, and has a status."""

from __future__ import annotations

import logging
import random

import pytest
from tests.collectors.training.test_training import FakeSessions
from tests.drawn import seeds
from tests.simulation import status
from tests.texts import NAMES, TEXTS

from gpugauge.base.text import whole
from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.training.memory import MemoryCollector
from gpugauge.collectors.training.training import TrainingCollector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import DriverView
from gpugauge.node.node import Node
from gpugauge.sessions.session import Session
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import processes
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from gpugauge.wire import messages as wire


def session(dice: random.Random, number: int, second: float) -> Session:
    """Return a training at a time; its texts are those of its number."""
    own = random.Random(f"{number} {dice.random()}")
    facts = {name: own.choice(TEXTS) for name in NAMES if own.random() < 0.8}
    facts = {name: text for name, text in facts.items() if text}
    count = int(2 * second)
    loader = wire.Loader(
        count, count, cpu_seconds=0.3 * count, storage_seconds=0.1 * count, blocked_seconds=0.1 * count, slowest=0.5
    )
    snap = wire.Snap(
        f"{number:032}",
        count,
        steps=wire.Progress(count, second, second),
        batches=wire.Progress(count, 0.6 * second, second),
        parameters=(wire.Parameters(own.choice(["cpu", "cuda:0", "²"]), own.choice(TEXTS) or "x", 1, 10, 40),),
        devices=(wire.Device(0, "GPU-1", 10, 20, 30, name=own.choice(TEXTS), capability=own.choice(TEXTS)),),
        waits={"training": 0.6 * second},
        local_work_seconds=0.3 * second,
        loader=loader if own.random() < 0.8 else None,
        facts=facts,
    )
    hello = wire.Hello(f"{number:032}", 0, number, None, 0.0, dict(list(facts.items())[:20]))
    return Session(hello, number, 1000, snap)


@seeds(range(40))
def test_every_process_is_judged_and_shown(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    sessions = FakeSessions()
    collectors: list[RegisteredCollector] = [
        TrainingCollector(sessions, lambda session: f"pid-{session.peer_pid}"),
        MemoryCollector(),
        VerdictCollector(),
    ]
    history = History()
    with caplog.at_level(logging.WARNING):
        for second in range(0, 70, 5):
            sessions.sessions = tuple(session(random.Random(seed), number, float(second)) for number in range(1, 9))
            node = Node(1e9 + second, float(second))
            tick = Tick(node.timestamp, node.monotonic, DriverView(up=False, reason="off"), node=node)
            sections = [collector.collect(tick) for collector in collectors]
            snapshot = Snapshot(node.timestamp, node.monotonic, tuple(sections), node=node)
            history.feed(snapshot)
    facts = status(snapshot, history)

    assert caplog.messages == []
    judged = next(family for family in sections[-1].families if family.metric.name == "training_state")
    assert {labels[0] for labels, _ in judged.samples} == {f"pid-{number}" for number in range(1, 9)}
    assert len(processes(decoded(Status, facts))) == 8
    assert table(decoded(Status, facts), False, 1e9, 100)
    assert all(process_screen(process, 1e9, 100, colour=False) for process in processes(decoded(Status, facts)))
    assert content(decoded(Status, facts), None, NO_LINKS)


def test_whole_numbers() -> None:
    digits = {text for text in TEXTS if text and set(text) <= set("0123456789") and len(text) <= 10}

    assert {text: whole(text) for text in TEXTS} == {text: int(text) if text in digits else None for text in TEXTS}


def test_a_process_that_cannot_be_judged_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = FakeSessions(*(session(random.Random(1), number, 5.0) for number in (1, 2, 3)))
    training, verdict = TrainingCollector(sessions, lambda session: f"pid-{session.peer_pid}"), VerdictCollector()
    judge = verdict._judge

    def broken(process: str, tick: Tick) -> None:
        if process == "pid-2":
            raise ValueError("a text of the program")
        judge(process, tick)

    monkeypatch.setattr(verdict, "_judge", broken)
    tick = Tick(1e9, 5.0, DriverView(up=False, reason="off"))
    training.collect(tick)
    section = verdict.collect(tick)

    states = next(family for family in section.families if family.metric.name == "training_state")
    assert {labels[0] for labels, _ in states.samples} == {"pid-1", "pid-3"}
    assert caplog.messages == ["a process cannot be judged"]
