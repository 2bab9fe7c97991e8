"""Which connection is closed when there are too many, and when: drawn lives of connections, against docs/http.md."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import seeds

from gpugauge.web import connections
from gpugauge.web.connections import Listener
from gpugauge.web.messages import Client, Reply
from gpugauge.web.prefixes import prefix

# Seconds in each phase, from docs/http.md; the last reply is followed by the client's close, or by ours.
SECONDS = {"fresh": 10.0, "first": 20.0, "busy": 20.0, "idle": 300.0, "closing": 2.0}
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]


class Peer:
    """A connection without a socket, and what is expected of it."""

    def __init__(self, stream: object, remote: str, owner: Listener) -> None:
        self.remote, self.owner = remote, owner
        self.closed = self.started = False
        self.phase, self.since = "fresh", 0.0
        self.admitted = self.progress = 0  # ordinals; not admitted: 0
        self.pending = False  # its login is checked

    def start(self) -> None:
        self.started = True

    def close(self) -> None:
        self.closed = True
        self.owner.on_close(self)  # type: ignore[arg-type]  # a stand-in

    @property
    def newcomer(self) -> bool:
        return not self.admitted and not self.pending


class Drawn:
    """A listener whose connections live as drawn."""

    def __init__(self, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance, self.now, self.ordinal = chance, 1000.0, 0
        self.limit = chance.choice([4, 8, 16, 20])
        clock = SimpleNamespace(get_running_loop=lambda: SimpleNamespace(time=lambda: self.now))
        monkeypatch.setattr(connections, "asyncio", clock)
        monkeypatch.setattr(connections, "Connection", self.made)
        self.listener = Listener(lambda _: Reply(200, b""), self.limit, lambda: None)
        self.open: list[Peer] = []
        self.last: Peer

    def made(self, *arguments: Any) -> Peer:
        self.last = Peer(*arguments)
        return self.last

    def enter(self, peer: Peer, phase: str) -> None:
        self.ordinal += 1
        peer.phase, peer.since, peer.progress = phase, self.now, self.ordinal

    def closed(self) -> list[Peer]:
        """Return the connections that were closed by the last action; they are open no longer."""
        gone = [peer for peer in self.open if peer.closed]
        self.open = [peer for peer in self.open if not peer.closed]
        return gone

    # --- actions ---

    def connect(self) -> None:
        full, before = len(self.open) >= self.limit, list(self.open)
        address = self.chance.choice(ADDRESSES)
        self.listener.serve(object(), address)  # type: ignore[arg-type]  # a stand-in
        peer = self.last
        assert (peer.remote, peer.started, peer.closed) == (address, True, False)
        gone = self.closed()
        assert len(gone) == full
        if full:
            assert gone[0] in self.evictable(before)
        self.open.append(peer)
        self.enter(peer, "fresh")

    def evictable(self, peers: list[Peer]) -> list[Peer]:
        """Of the address with the most newcomers, the one whose last progress is longest ago."""
        newcomers = [peer for peer in peers if peer.newcomer]
        if not newcomers:
            waiting = [p for phase in ("closing", "idle", "busy", "first", "fresh") for p in peers if p.phase == phase]
            oldest = [p for p in waiting if p.phase == waiting[0].phase]
            return [min(oldest, key=lambda p: p.progress)]
        of = Counter(prefix(peer.remote) for peer in newcomers)
        most = [p for p in newcomers if of[prefix(p.remote)] == max(of.values())]
        return [
            min((p for p in most if prefix(p.remote) == a), key=lambda p: p.progress)
            for a in of
            if of[a] == max(of.values())
        ]

    def ask(self, peer: Peer) -> None:
        self.listener.request_begins(peer)  # type: ignore[arg-type]  # a stand-in
        self.enter(peer, "busy" if peer.admitted else "first")
        if self.chance.random() < 0.3:
            self.listener.reply_pending(peer)  # type: ignore[arg-type]  # a stand-in
            peer.pending = not peer.admitted

    def answer(self, peer: Peer) -> None:
        kind = self.chance.choice(list(Client))
        reply = Reply(200, b"", client=kind)
        self.listener.reply_begins(peer, reply)  # type: ignore[arg-type]  # a stand-in
        was_pending, peer.pending = peer.pending, False
        if kind is Client.KNOWN:
            self.admit(peer, "busy")
        elif was_pending:
            self.ordinal += 1
            peer.progress = self.ordinal
        if peer.closed or self.chance.random() < 0.3:
            return
        if self.chance.random() < 0.2:
            self.listener.last_reply_sent(peer)  # type: ignore[arg-type]  # a stand-in
            self.enter(peer, "closing")
            return
        self.listener.request_ends(peer, reply)  # type: ignore[arg-type]  # a stand-in
        if peer.admitted or kind is not Client.REFUSED:
            self.admit(peer, "idle")
        else:
            self.enter(peer, "fresh")

    def admit(self, peer: Peer, phase: str) -> None:
        """One eighth of the connections stays free for newcomers."""
        self.enter(peer, phase)
        if peer.admitted:
            assert self.closed() == []
            return
        peer.admitted = self.ordinal
        admitted = [p for p in self.open if p.admitted]
        idle = [p for p in admitted if p.phase == "idle"]
        gone = self.closed()
        if len(admitted) <= self.limit - max(1, self.limit // 8) or not idle:
            assert gone == []
            return
        of = Counter(prefix(p.remote) for p in admitted)
        most = max(of[prefix(p.remote)] for p in idle)
        own = [p for p in idle if of[prefix(p.remote)] == most]
        last = {max((p for p in own if prefix(p.remote) == prefix(q.remote)), key=lambda p: p.admitted) for q in own}
        assert len(gone) == 1
        assert gone[0] in last

    def wait(self) -> None:
        self.now += self.chance.choice([0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 290.0])
        overdue = [p for p in self.open if self.now - p.since >= SECONDS[p.phase]]
        self.listener.close_overdue(self.now)
        assert set(self.closed()) == set(overdue)

    def step(self) -> None:
        action = self.chance.random()
        if action < 0.35 or not self.open:
            self.connect()
        elif action < 0.45:
            self.wait()
        else:
            peer = self.chance.choice(self.open)
            if action < 0.5 or peer.phase == "closing":
                peer.close()
                assert self.closed() == [peer]
            elif peer.phase in ("fresh", "idle"):
                self.ask(peer)
            else:
                self.answer(peer)
        busy = any(peer.phase != "idle" for peer in self.open)
        assert self.listener.is_idle is not busy


@seeds(range(40))
def test_drawn_lives_of_connections(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(random.Random(seed), monkeypatch)
    for _ in range(300):
        drawn.step()
        assert len(drawn.open) <= drawn.limit

    for peer in drawn.open:
        peer.close()
    assert drawn.listener.is_idle
    assert (len(drawn.listener._admitted), len(drawn.listener._newcomers), len(drawn.listener._admitted_of)) == (
        0,
        0,
        0,
    )
