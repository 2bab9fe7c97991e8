"""A rank in a phase without steps, for which the others wait: nobody stalls or is behind until the phase takes too
long, also over several runs on a node. Drawn, in simulated time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.drawn import seeds

from gpugauge.collectors.base import Tick
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import DriverView
from gpugauge.node.node import Node
from gpugauge.sessions.inquiry import ELSEWHERE, QUIET_SECONDS, WAITING, Inquiry
from gpugauge.sessions.session import Session
from gpugauge.status.processes import standstills
from gpugauge.verdict.shares import life_shares
from gpugauge.verdict.states import PHASE_STALL_FACTOR
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SharedRecord
from gpugauge.wire.shares import NAMED_PHASES

LIMIT, TICK = 40.0, 5.0
LATE = 2 * TICK  # a verdict reads the last one of the other ranks
EXCUSED = PHASE_STALL_FACTOR * LIMIT
START = 1.7e9
WINDOW = 60.0  # of the shares
BUSY = 100.0  # of training before anything happens: each step takes a second
OFF = DriverView(up=False, reason="off")


@dataclass
class Run:
    """Ranks of one job. From `BUSY` on one is in a phase, or in its own code, for `lasts` seconds; the others wait."""

    name: str
    size: int
    culprit: int
    phase: str
    lasts: float

    def stands(self, now: float) -> bool:
        return BUSY < now <= BUSY + self.lasts

    def sessions(self, now: float) -> dict[str, Session]:
        return {f"{self.name}{rank}": self._session(rank, now) for rank in range(self.size)}

    def _session(self, rank: int, now: float) -> Session:
        stands = self.stands(now)
        steps = int(min(now, BUSY)) + int(max(0.0, now - BUSY - self.lasts))
        phase = self.phase if stands and rank == self.culprit else "training"
        stood = min(self.lasts, max(0.0, now - BUSY)) if rank == self.culprit else 0.0
        spent = dict.fromkeys(PHASES, 0.0) | {"training": now - stood}
        spent[self.phase] += stood
        last = BUSY if stands else now
        record = SharedRecord(phase, START + (BUSY if stands else 0.0), steps, steps, spent, START + last)
        inquiry = None
        if stands and now - BUSY > QUIET_SECONDS:
            position = ELSEWHERE if rank == self.culprit else WAITING
            waiting = START + BUSY + QUIET_SECONDS if position == WAITING else None
            inquiry = Inquiry(START + BUSY, answered=START + now, position=position, waiting=waiting)
        alone = self.size == 1 and self.name == "ax"  # without torchrun
        ranks = {} if alone else {"rank": str(rank), "world_size": str(self.size)}
        snap = wire.Snap("a" * 32, 1, steps=wire.Progress(steps, float(steps), START + last, (0,) * 12 + (steps,)))
        owner = ("slurm", self.name[0], "", "", "")
        hello = wire.Hello("a" * 32, 0, 1, None, START, {"command": "train.py", **ranks})
        return Session(hello, 4242, 1000, snap, record=record, owner=owner, inquiry=inquiry)


def drawn(chance: random.Random) -> list[Run]:
    found = []
    for name in "abc"[: chance.randint(1, 3)]:
        size = chance.choice([1, 1, 2, 3, 5])
        phase = chance.choice([*sorted(NAMED_PHASES), "training"])
        lasts = chance.choice([40.0, 3 * LIMIT, EXCUSED - 30.0, EXCUSED - 20.0, 1e9])
        found.append(Run(f"{name}x", size, chance.randrange(size), phase, lasts))
        if size == 1 or chance.random() < 0.5:  # another run in the same job
            found.append(Run(f"{name}y", 1 if size == 1 else size + 1, 0, "evaluating", 1e9))
    # The phase of one run excuses no other, and two programs of one rank each in a job do not wait for each other.
    always = [Run("tx", 2, 0, "training", 3 * LIMIT), Run("sx", 1, 0, "training", 1e9)]
    return [*found, *always, Run("sy", 1, 0, "evaluating", 1e9)]


@seeds(range(20))
def test_a_phase_excuses_the_ranks_of_its_run_for_a_while(seed: int) -> None:
    runs = drawn(random.Random(seed))
    collector = VerdictCollector(LIMIT)
    now = 0.0
    while now < BUSY + EXCUSED + 120.0:
        now += TICK
        sessions: dict[str, Any] = {}
        for run in runs:
            sessions |= run.sessions(now)
        node = Node(timestamp=START + now, monotonic=now, sessions=sessions)
        collector.collect(Tick(START + now, now, OFF, node=node))
        _check(runs, node, now)


def _check(runs: list[Run], node: Node, now: float) -> None:
    still = standstills(node)
    for run in runs:
        states = [node.judged[f"{run.name}{rank}"].verdict.state for rank in range(run.size)]
        behind = [rank for rank in range(run.size) if (at := still.get(f"{run.name}{rank}")) and at.behind]
        stood, named = now - BUSY, run.phase in NAMED_PHASES
        limit = EXCUSED if named else LIMIT
        if not run.stands(now) or stood < limit:
            assert "stalled" not in states or stood - run.lasts < LATE, (run, now, states)
        if named and run.stands(now) and LATE < stood < limit:
            assert states[run.culprit] == run.phase, (run, now, states)
        if run.stands(now) and stood > limit + LATE:
            assert set(states) == {"stalled"}, (run, now, states)
        if run.size > 1 and run.stands(now) and stood > QUIET_SECONDS + LATE:
            told = stood > limit + LATE or not named
            assert behind == ([run.culprit] if told else []) or abs(stood - limit) <= LATE, (run, now, behind)
        elif run.size == 1 or not run.stands(now):
            assert behind == [], (run, now)
        for rank in range(run.size) if run.stands(now) and stood > WINDOW + 2 * QUIET_SECONDS else ():
            shares = node.judged[f"{run.name}{rank}"].shares
            if rank != run.culprit:
                assert shares["peers"] >= 0.99, (run, now, rank, shares)
                whole, _ = life_shares(node.sessions[f"{run.name}{rank}"])
                assert abs(whole["peers"] - (stood - QUIET_SECONDS) / now) < 0.01, (run, now, whole)
            elif not named and stood > limit + LATE:
                assert shares == {}, (run, now, shares)
