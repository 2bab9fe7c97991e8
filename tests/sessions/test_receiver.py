"""The receiver: what strangers hand over stops neither the daemon nor other sessions; limits; identity."""

import _socket
import _thread
import contextlib
import os
import posix
import socket
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gpugauge.sessions.receiver import limits as receiver_limits
from gpugauge.sessions.receiver import peer, protocol, socketfile
from gpugauge.sessions.receiver.channel import Channel
from gpugauge.sessions.receiver.closing import MAX_THREADS, Closer
from gpugauge.sessions.receiver.loop import Refusals
from gpugauge.sessions.receiver.peer import CgroupUser, cgroup_of, identify
from gpugauge.sessions.receiver.protocol import Options
from tests.drawn import cases, seeds
from tests.sessions.hooks import until


def test_a_used_pid_is_not_taken_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid belongs to another process when the identity is read."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    with here, there:
        assert identify(here, now).pid == os.getpid()
        monkeypatch.setattr(peer, "_alive", lambda _: False)  # by its pidfd
        found = identify(here, now)
        assert (found.pid, found.owner.cgroup, found.claimed) == (0, peer.PASSED_ON, os.getpid())
        monkeypatch.setattr(peer, "_alive", lambda _: None)  # before Linux 6.5: by the age of the process
        started = peer._start(os.getpid()) / os.sysconf("SC_CLK_TCK")
        assert identify(here, started - 1).pid == 0
        assert identify(here, started + 1).pid == os.getpid()


@cases(
    ("text", "cgroup"),
    [
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/mine\n", "/user.slice/user-1000.slice"),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", "/user.slice/user-1000.slice"),
        ("0::/kubepods.slice/pod1.slice/cri-1.scope\n", "/kubepods.slice/pod1.slice/cri-1.scope"),
        ("0::/\n", "0::/"),
        ("4:memory:/docker/1\n0::/\n", "4:memory:/docker/1\n0::/"),
    ],
)
def test_the_cgroup_that_a_limit_applies_to(text: str, cgroup: str) -> None:
    assert cgroup_of(text) == cgroup


def test_limits_by_user_by_cgroup_and_in_all() -> None:
    limits = receiver_limits.Limits(Options(connections=5, connections_by_user=4, connections_by_cgroup=2))
    a, b, none = CgroupUser(1, "/a"), CgroupUser(1, "/b"), CgroupUser(2, "")
    for owner in (a, a, b, b):
        assert limits.full(owner) == ""
        limits.add(owner, 1)
    assert [limits.full(o) for o in (a, CgroupUser(3, "/a"), CgroupUser(1, "/c"), none)] == [
        "user",
        "cgroup",
        "user",
        "",
    ]
    limits.add(none, 1)
    assert limits.full(CgroupUser(9, "/z")) == "all"
    limits.add(a, -1)
    assert limits.full(CgroupUser(9, "/a")) == ""


def filled(limits: receiver_limits.Limits, *owners: CgroupUser) -> None:
    """Open as many connections of each owner as the limits allow."""
    for owner in owners:
        while not limits.full(owner):
            limits.add(owner, 1)


@seeds(range(20))
def test_owners_with_few_connections_have_room_whatever_others_hold(seed: int) -> None:
    draw, options = Random(seed), Options()
    limits, held = receiver_limits.Limits(options), Counter[CgroupUser]()
    users, cgroups = draw.randint(2, 9), draw.randint(2, 3)
    crowd = [CgroupUser(draw.randrange(users), f"/{draw.randrange(cgroups)}") for _ in range(12)]
    filled(limits, *crowd)
    crowd = [owner for owner in crowd if limits._connections.get(("cgroup", owner.cgroup), 0) > 100]
    few = options.connections // 64

    for number in range(5):  # of a user each
        owner = CgroupUser(1000 + number, f"/n{number}")
        for _ in range(few):
            assert limits.full(owner) == ""
            limits.add(owner, 1)
            held[owner] += 1
    assert sum(held.values()) == 5 * few
    # A range of users in the cgroup of one that has many is none with few.
    full = limits._connections["all", ""] >= options.connections * 7 / 8
    assert all(limits.full(CgroupUser(5000 + n, owner.cgroup)) for n, owner in enumerate(crowd) if full)


def test_a_range_of_users_does_not_make_the_limit_of_their_cgroup_forgotten() -> None:
    limits = receiver_limits.Limits(Options())
    refused = 0
    for uid in range(20_000):
        assert not limits.connects(("user", uid))
        refused += limits.connects(("cgroup", "/a"))

    assert refused > 16_000


def test_refusals_of_a_range_of_users_are_few_datagrams_and_all_counted() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here:
        raw = _socket.socket(fileno=there.detach())
        refusals, channel = Refusals(), Channel(raw)
        for number in range(10_000):
            refusals.add(number, ("connections", "connect_rate")[number % 2], "detail")
        refusals.report(channel)
        here.setblocking(False)
        counts = Counter[int]()
        with contextlib.suppress(BlockingIOError):
            while True:
                channel.wait(0)
                uid, count = protocol.REFUSED.unpack_from(here.recv(1000)[protocol.HEADER.size :])
                counts[uid] += count
        raw.close()
    assert len(counts) == 65
    assert sum(counts.values()) == 10_000
    assert counts[protocol.MANY_USERS] == 10_000 - 64


def test_who_opens_too_many_connections_may_open_some_soon_after(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limits = receiver_limits.Limits(Options(connects=20))
    for _ in range(100_000):
        limits.connects(("user", 1))
    now[0] += 2.0
    assert not limits.connects(("user", 1))


def test_a_user_does_not_use_up_the_connects_of_a_cgroup_that_others_share() -> None:
    """As that of a service which starts the programs of many users."""
    limits = receiver_limits.Limits(Options())
    for _ in range(50_000):
        if not limits.connects(("user", 1)):
            limits.connects(("cgroup", "/shared"))
    assert not limits.connects(("user", 2))
    assert not limits.connects(("cgroup", "/shared"))


def test_what_is_queued_on_a_connection_that_was_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    for messages, expected in (((), False), ((b"x",), True), ((b"",), True), ((b"", b"x"), True)):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            for message in messages:
                socket.send_fds(there, [message], [there.fileno()] if message else [])
            socketfile.shut(here)
            with pytest.raises(BrokenPipeError):
                there.send(b"later")
            assert socketfile.holds_messages(here) is expected
            for collects in (True, False):  # before Linux 6.9, and since
                monkeypatch.setattr(socketfile, "COLLECTS_IN_CLOSE", collects)
                assert socketfile.close_may_block(here) is (expected or collects)


def test_many_owners_share_the_threads_that_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits for a thread of its own."""
    closer, started = Closer(), list[object]()
    start = _thread.start_new_thread

    def counted(function: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        started.append(function)
        return start(function, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", counted)
    monkeypatch.setattr(posix, "close", lambda _: time.sleep(0.01))
    for uid in range(200):
        closer.close(CgroupUser(uid, ""), [1000 + uid])

    until(lambda: closer.total == 0)
    assert len(started) <= 2 * MAX_THREADS


def test_an_unexpected_error_of_a_thread_that_closes_ends_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon reports it, and starts another one."""
    closer = Closer()
    monkeypatch.setattr(posix, "close", lambda _: 1 // 0)
    closer.close(CgroupUser(1, ""), [1000])
    until(lambda: closer.error is not None)

    with pytest.raises(ZeroDivisionError):
        closer.retry()
