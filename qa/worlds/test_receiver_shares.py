"""Drawn crowds at the receiver of the hook's socket: who is served, and how many connections a cgroup gets."""

from __future__ import annotations

import _socket
import contextlib
import random
import socket
from collections import Counter
from pathlib import Path

from tests.drawn import seeds

from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.receiver.channel import Channel
from gpugauge.sessions.receiver.limits import Limits
from gpugauge.sessions.receiver.loop import _FIRST_MESSAGES, Receiver
from gpugauge.sessions.receiver.peer import PASSED_ON, CgroupUser
from gpugauge.sessions.receiver.socketfile import SocketFile

WIDE = {"rate": 1e9, "burst": 1e9, "messages_by_owner": 1e9, "bytes_by_owner": 1e12}


def received(daemon: socket.socket, count: int) -> list[tuple[int, int]]:
    """Return kind and number of the next datagrams to the daemon, at most `count`."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(BlockingIOError):
        while len(found) < count:
            found.append(p.HEADER.unpack_from(daemon.recv(p.MAX_DATAGRAM_BYTES)))
    return found


@seeds(range(60))
def test_each_client_is_served_in_its_turn_and_a_newcomer_at_once(seed: int, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        crowded(random.Random(seed), tmp_path, stack)


def crowded(draw: random.Random, tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """The daemon takes few datagrams at a time, and every client always has another message."""
    daemon, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stack.enter_context(daemon).setblocking(False)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least, some datagrams
    channel, file = _socket.socket(fileno=theirs.detach()), SocketFile(str(tmp_path / "s"), 0o666, 4096)
    receiver = Receiver(Channel(channel), file, p.Options(**WIDE))
    stack.callback(file.socket.close)
    stack.callback(channel.close)
    stack.callback(lambda: list(map(_socket.socket.close, (peer.sock for peer in receiver._peers.values()))))

    def client(messages: int) -> socket.socket:
        made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        made.connect(str(tmp_path / "s"))
        for _ in range(messages):
            made.send(b"x")
        return made

    served: Counter[int] = Counter()
    crowd = draw.randint(10, 120)
    for _ in range(crowd):
        client(60)
    rounds = draw.randint(1, 30)
    while len(served) < crowd or min(served.values()) < rounds:
        receiver.turn(0)
        served.update(number for kind, number in received(daemon, draw.randint(1, 9)) if kind == p.MESSAGE)
        # Those of the crowd are in their first messages, or each is at most one turn ahead of any other.
        assert len(served) < crowd or max(served.values()) - min(served.values()) <= _FIRST_MESSAGES

    backlog = len(received(daemon, 1000))  # was passed on before the newcomer came
    # Those of the crowd that are still in their first messages are newcomers, too.
    fresh = sum(max(0, _FIRST_MESSAGES - messages) for messages in served.values())
    client(_FIRST_MESSAGES)
    seen, others = 0, 0
    while seen < _FIRST_MESSAGES:
        receiver.turn(0)
        for kind, number in received(daemon, 3):
            seen += kind == p.MESSAGE and number > crowd
            others += kind == p.MESSAGE and number <= crowd
    assert others <= fresh + 3 * max(backlog, 10)  # what the channel holds, once for each of its messages


@seeds(range(200))
def test_no_cgroup_gets_more_than_its_limit_by_connections_that_are_passed_on(seed: int) -> None:
    draw = random.Random(seed)
    by_cgroup = draw.choice((3, 20, 100))
    limits = Limits(p.Options(connections=400, connections_by_user=300, connections_by_cgroup=by_cgroup))
    held: Counter[str] = Counter()
    owners = [CgroupUser(uid, cgroup) for uid in range(3) for cgroup in ("/a", "/b", PASSED_ON)]
    opened: list[CgroupUser] = []
    for _ in range(draw.randint(1, 600)):
        if opened and draw.random() < 0.2:
            owner = opened.pop(draw.randrange(len(opened)))
            limits.add(owner, -1)
            held[owner.cgroup] -= 1
        elif not limits.full(owner := draw.choice(owners)):
            opened.append(owner)
            limits.add(owner, 1)
            held[owner.cgroup] += 1
        # Each that was passed on may be of either.
        assert max(held["/a"], held["/b"]) + held[PASSED_ON] <= by_cgroup
        assert held[PASSED_ON] <= 400 // 64 + 1
    assert opened
