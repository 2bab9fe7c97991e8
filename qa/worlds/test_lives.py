"""Drawn lives of sessions, through a receiver that the test plays."""

from __future__ import annotations

import itertools
import random
import socket
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.sessions.hooks import steps_of, until
from tests.sessions.playedreceiver import Played, playing, settle

from gpugauge.sessions.receiver import protocol as p
from gpugauge.wire import messages as wire


@dataclass
class Life:
    """What is expected of a session."""

    uid: int
    connected: bool = True
    steps: int | None = None
    reason: str = ""
    lost: bool = False


@dataclass
class Peer:
    """What is expected of a connection."""

    uid: int
    session: str = ""
    bye: str | None = None


class Expected:
    """The sessions and counts that a drawn sequence must lead to."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.peers: dict[int, Peer] = {}
        self.rejected: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.closed: list[int] = []
        self.replaced = 0

    def hello(self, number: int, name: str) -> None:
        peer, life = self.peers[number], self.lives.get(name)
        if peer.session or (life and (life.uid != peer.uid or (life.connected and not life.lost))):
            self.refuse(number)
            return
        peer.session = name
        self.lives[name] = Life(peer.uid, steps=life.steps if life else None)

    def snap(self, number: int, name: str, steps: int) -> None:
        if not self.peers[number].session or self.peers[number].session != name:
            self.refuse(number)
            return
        self.lives[name].steps, self.peers[number].bye = steps, None

    def bye(self, number: int, name: str, reason: str) -> None:
        if not self.peers[number].session or self.peers[number].session != name:
            self.refuse(number)
            return
        self.peers[number].bye = reason

    def refuse(self, number: int) -> None:
        self.rejected["malformed"] += 1
        self.closed.append(number)
        self.end(number, "rejected")

    def end(self, number: int, rejected: str = "") -> None:
        peer = self.peers.pop(number)
        if not peer.session:
            return
        known = peer.bye if peer.bye in ("finished", "error", "out_of_memory", "interrupted") else "other"
        reason = "rejected" if rejected else "killed" if peer.bye is None else known
        life = self.lives[peer.session]
        life.connected, life.reason = False, reason
        self.ended[reason] += 1

    def replace(self) -> None:
        self.replaced += 1
        for peer in self.peers.values():
            if peer.session:
                self.lives[peer.session].lost = True
        self.peers.clear()
        self.closed.clear()


NAMES = [f"{number:032}" for number in range(5)]
ACTIONS = ["hello", "snap", "snap", "snap", "bye", "end", "reject"]


def act(chance: random.Random, played: Played, expected: Expected, number: int) -> None:
    """Draw what happens to a connection; the number is that of a new one, 0 for one of those that are open."""
    action = "open" if number else chance.choice(ACTIONS)
    if action == "reject":
        reason, count = chance.choice(["silent", "rate", "connections"]), chance.randint(1, 9)
        played.reject(reason, 1, count)
        expected.rejected[reason] += count
        return
    if action == "open":
        uid = chance.choice([1, 1, 1, 2])
        played.open(number, uid)
        expected.peers[number] = Peer(uid)
    elif not expected.peers:
        return
    else:
        number = chance.choice(list(expected.peers))
    own = expected.peers[number].session
    name = own if own and chance.random() < 0.9 else chance.choice(NAMES)
    if action == "hello" or (action == "open" and chance.random() < 0.9):
        played.message(number, wire.Hello(name, 0))
        expected.hello(number, name)
    elif action == "snap":
        steps = chance.randrange(10**6)
        played.message(number, wire.Snap(name, 1, steps=wire.Progress(steps)))
        expected.snap(number, name, steps)
    elif action == "bye":
        reason = chance.choice([*wire.END_REASONS, "a word of tomorrow"])
        played.message(number, wire.Bye(name, 1, reason))
        expected.bye(number, name, reason)
    elif action == "end":
        rejected = chance.choice(["", "", "rate"])
        played.send(p.ENDED, number, rejected.encode())
        expected.end(number, rejected)


@seeds(range(12))
def test_drawn_lives_of_sessions(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with playing(tmp_path, monkeypatch) as start:
        chance = random.Random(seed)
        listener, expected = start(), Expected()
        numbers = itertools.count(1)
        for turn in range(1, 12):
            played = Played.made[-1]
            for _ in range(chance.randint(1, 12)):
                act(chance, played, expected, next(numbers) if chance.random() < 0.25 else 0)
            settle(listener, turn)

            found = {s.hello.session: (s.peer_uid, s.connected, steps_of(s), s.end_reason) for s in listener.view()}
            assert found == {n: (v.uid, v.connected, v.steps, v.reason) for n, v in expected.lives.items()}
            assert {*listener._connections} == {*expected.peers}  # none is kept after its end
            counters = listener.counters()
            assert {k: v for k, v in counters.rejected.items() if v} == expected.rejected
            assert {k: v for k, v in counters.ended.items() if v} == expected.ended
            assert [(kind, number) for kind, number, _ in played.commands()] == [(p.CLOSE, n) for n in expected.closed]
            expected.closed.clear()
            if chance.random() < 0.3:
                played.status = 0
                played.channel.shutdown(socket.SHUT_RDWR)
                expected.replace()
                until(lambda: len(Played.made) > expected.replaced)
                assert listener.counters().replaced == {"stuck": 0, "blocked": 0, "ended": expected.replaced}
