"""The receiver: what strangers hand over stops neither the daemon nor other sessions; limits; identity."""

import _socket
import _thread
import contextlib
import itertools
import os
import posix
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from qa.torture.users.groups import cgroup

from gpugauge.sessions.budget import Budget
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.receiver import limits as receiver_limits
from gpugauge.sessions.receiver import peer, protocol, socketfile
from gpugauge.sessions.receiver.channel import Channel
from gpugauge.sessions.receiver.closing import MAX_THREADS, Closer
from gpugauge.sessions.receiver.peer import CgroupUser, cgroup_of, identify
from gpugauge.sessions.receiver.protocol import Options
from gpugauge.sessions.receiver.refusals import Refusals
from tests.needs import require

from .test_listener import ONE, TWO, hello, shared_record, snap, steps_of, until

HONEST = "a" * 32


@pytest.fixture
def make() -> Iterator[Callable[..., Sessions]]:
    """Return a function that starts a listener with options, in a folder that every user may open."""
    made: list[Sessions] = []

    def make(**options: Any) -> Sessions:
        made.append(Sessions(f"{folder}/hook.sock", **options))
        made[-1].start()
        return made[-1]

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield make
        for listener in made:
            listener.stop()


def forked(act: Callable[[], object], uid: int = 0) -> int:
    """Run `act` in a child process, of another user if given; return its pid."""
    child = os.fork()
    if child:
        return child
    code = 1
    with contextlib.suppress(BaseException):
        if uid:
            os.setresuid(uid, uid, uid)
        act()
        code = 0
    os._exit(code)


def connect(listener: Sessions) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(5)
    try:
        client.connect(str(listener.path))
    except OSError:
        client.close()
        raise
    return client


def connect_at_last(listener: Sessions) -> socket.socket:
    """Connect as the hook does: again after half a second while the queue is full."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return connect(listener)
        time.sleep(0.5)


def steps(listener: Sessions, session: str = HONEST) -> int | None:
    return next((steps_of(s) for s in listener.view() if s.hello.session == session and s.connected), None)


def reported(listener: Sessions, session: str, count: int) -> None:
    until(lambda: steps(listener, session) == count)


def lingering() -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket whose close waits for a minute, because its peer, the second one, does not read."""
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        client = socket.create_connection(server.getsockname())
        silent, _ = server.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(1 << 16))
    return client, silent


def descriptor_of_another_user(listener: Sessions, *, unread: bool) -> socket.socket:
    """Hand over a lingering socket in a process of another user and cgroup: with the first message, or in the queue of
    a connection that is closed before it is read. Return the end that holds the close up.
    """
    evil, silent = lingering()
    closed, close = os.pipe()

    def act() -> None:
        client = connect(listener)
        if unread:
            client.send(b"nonsense")
        socket.send_fds(client, [hello(TWO)], [evil.fileno()])
        evil.close()
        os.write(close, b"1")
        time.sleep(1.5)  # so that its identity can be proven

    # Only the close of the last holder blocks, so the receiver reads after the process has closed its own.
    receiver = listener.receiver_pid() or 0
    os.kill(receiver, signal.SIGSTOP)
    child = forked(act, 1234)
    evil.close()
    os.close(close)
    with os.fdopen(closed, "rb") as pipe:
        assert pipe.read(1) == b"1"
    os.kill(receiver, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0
    return silent


@pytest.fixture
def needs_root() -> None:
    require(os.geteuid() == 0, "only root can change the user")


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("unread", [False, True])
def test_a_descriptor_whose_close_blocks_stops_nobody(unread: bool, make: Callable[..., Sessions]) -> None:
    listener = make()
    pid = listener.receiver_pid()
    with connect(listener) as honest:
        honest.send(hello(HONEST))
        with descriptor_of_another_user(listener, unread=unread):
            for number in range(1, 40):
                honest.send(snap(number, HONEST))
                reported(listener, HONEST, number)
                time.sleep(0.1)
                if listener.counters().banned:
                    break
            until(lambda: listener.counters().banned == 1)
            assert refused_as(1234, listener)
            honest.send(snap(99, HONEST))
            until(lambda: steps(listener) == 99)
            assert listener.receiver_pid() == pid
            began = time.monotonic()
            listener.stop()
            assert time.monotonic() - began < 10  # TimeoutStopSec of the unit


def refused_as(uid: int, listener: Sessions) -> bool:
    """Return whether the daemon ends a new connection of a user at once."""

    def act() -> None:
        with contextlib.suppress(ConnectionError):
            assert connect(listener).recv(1) == b""

    return os.waitpid(forked(act, uid), 0)[1] == 0


def test_a_stopped_receiver_is_replaced_and_sessions_continue(make: Callable[..., Sessions]) -> None:
    listener = make()
    client, record = connect(listener), shared_record()
    socket.send_fds(client, [hello(HONEST)], [record])
    client.send(snap(5, HONEST))
    until(lambda: steps(listener) == 5)
    before = listener.receiver_pid()
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    until(lambda: listener.counters().replaced["stuck"] == 1)
    assert "stuck" in listener.trouble()
    until(lambda: listener.receiver_pid() not in (None, before))
    again = connect(listener)
    assert steps(listener) == 5
    with pytest.raises(ConnectionError):
        until(lambda: client.send(snap(6, HONEST)) == 0)  # the process learns that it must connect again
    client.close()
    again.send(hello(HONEST))
    again.send(snap(7, HONEST))
    until(lambda: steps(listener) == 7)
    assert sum(listener.counters().ended.values()) == 0
    again.close()
    until(lambda: not [s for s in listener.view() if s.connected])
    os.close(record)


def test_a_killed_receiver_is_replaced(make: Callable[..., Sessions], caplog: pytest.LogCaptureFixture) -> None:
    listener = make()
    before = listener.receiver_pid()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    until(lambda: listener.receiver_pid() not in (None, before))
    with connect(listener) as client:
        client.send(hello(HONEST))
        until(lambda: len(listener.view()) == 1)
    assert listener.counters().replaced == {"stuck": 0, "blocked": 0, "ended": 1}
    assert any("replaced" in record.message for record in caplog.records)


def test_a_session_whose_process_ended_without_a_receiver_ends(make: Callable[..., Sessions]) -> None:
    listener = make()

    def act() -> None:
        with connect(listener) as client:
            client.send(hello(HONEST))
            time.sleep(60)

    child = forked(act)
    until(lambda: len(listener.view()) == 1)
    receiver = listener.receiver_pid()
    assert receiver is not None
    os.kill(child, signal.SIGKILL)
    os.kill(receiver, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: [s.connected for s in listener.view()] == [False])


def test_the_daemon_stops_while_the_receiver_hangs(make: Callable[..., Sessions]) -> None:
    listener = make()
    receiver = listener.receiver_pid()
    assert receiver is not None
    os.kill(receiver, signal.SIGSTOP)
    began = time.monotonic()
    listener.stop()
    assert time.monotonic() - began < 10  # TimeoutStopSec of the unit


def test_the_receiver_ends_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    code = f"""
        import os, time
        from gpugauge.sessions.listener import Sessions
        listener = Sessions({str(path)!r})
        listener.start()
        print(listener.receiver_pid(), flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout
        receiver = int(daemon.stdout.readline())
        daemon.kill()
    until(lambda: not Path(f"/proc/{receiver}").exists())
    assert not path.exists()


def test_a_receiver_rests_while_nobody_is_connected(make: Callable[..., Sessions]) -> None:
    listener = make()
    intake = listener._reception._intake
    assert intake

    for session in (ONE, TWO):
        until(lambda: intake.resting)
        with connect(listener) as client:  # before it is accepted, the daemon expects reports each second again
            until(lambda: not intake.resting)
            client.send(hello(session))
            until(lambda session=session: session in {s.hello.session for s in listener.view()})  # type: ignore[misc]  # the lambda has a default
            time.sleep(1.2)
            assert not intake.resting
    assert listener.counters().replaced == dict.fromkeys(("stuck", "blocked", "ended"), 0)


def test_a_removed_socket_is_opened_again(make: Callable[..., Sessions], caplog: pytest.LogCaptureFixture) -> None:
    listener = make()
    with connect(listener) as before:
        before.send(hello(ONE))
        listener.path.unlink()
        until(listener.path.exists)
        with connect(listener) as client:
            client.send(hello(TWO))
            until(lambda: [s.connected for s in listener.view()] == [True, True])
    assert ["the hook's socket was removed, and is opened again"] == [r.message for r in caplog.records]


@pytest.mark.usefixtures("needs_root")
def test_a_newcomer_is_seen_behind_busy_clients(make: Callable[..., Sessions]) -> None:
    wide = 10**6  # the cgroup is the same here
    listener = make(connections_by_cgroup=wide, connections=wide, budget=Budget(wide, wide))
    stop = time.monotonic() + 3

    def act() -> None:
        busy = [connect(listener) for _ in range(1000)]
        for number, client in enumerate(busy):
            client.send(hello(f"{number:032}"))
        while time.monotonic() < stop + 5:
            for number, client in enumerate(busy):
                with contextlib.suppress(OSError):
                    client.send(snap(1, f"{number:032}"))
            with contextlib.suppress(BlockingIOError):
                crowd = [connect(listener) for _ in range(50)]
                for client in crowd:
                    client.close()

    child = forked(act, 1234)
    try:
        until(lambda: len(listener.view()) > 100)
        while time.monotonic() < stop:
            name = os.urandom(16).hex()
            with connect(listener) as newcomer:
                newcomer.send(hello(name))
                newcomer.send(snap(3, name))
                reported(listener, name, 3)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_peer_that_is_gone_at_the_accept_counts(make: Callable[..., Sessions]) -> None:
    """A process connects, passes the connection to another one, and ends: its cgroup cannot be read any more."""
    listener = make(connections_by_cgroup=3, connections_by_user=100)
    receiver = listener.receiver_pid()
    assert receiver is not None
    os.kill(receiver, signal.SIGSTOP)
    held, clients = [], 5
    try:
        for _ in range(clients):
            here, there = socket.socketpair()

            def pass_on(there: socket.socket = there) -> None:
                with connect(listener) as client:
                    socket.send_fds(there, [b"x"], [client.fileno()])

            child = forked(pass_on)
            _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
            held.append(socket.socket(fileno=descriptors[0]))
            os.waitpid(child, 0)
            here.close()
            there.close()
    finally:
        os.kill(receiver, signal.SIGCONT)
    until(lambda: listener.counters().rejected["connections"] == clients - 3)
    held[0].send(hello(ONE))
    until(lambda: len(listener.view()) == 1)
    assert listener.view()[0].peer_pid == 0  # not proven
    for client in held:
        client.close()


def test_connections_a_second_are_limited(make: Callable[..., Sessions]) -> None:
    listener = make(connects=1)
    honest = connect(listener)
    honest.send(hello(HONEST))
    clients = 2000
    for _ in range(clients):
        with contextlib.suppress(BlockingIOError):  # the queue is full
            connect(listener).close()
    until(lambda: listener.counters().rejected["connect_rate"] > 100)
    honest.send(snap(4, HONEST))
    until(lambda: steps(listener) == 4)
    honest.close()


def test_a_used_pid_is_not_taken_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid belongs to another process when the identity is read."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    with here, there:
        assert identify(here, now).pid == os.getpid()
        monkeypatch.setattr(peer, "_alive", lambda _: False)  # by its pidfd
        found = identify(here, now)
        assert (found.pid, found.owner.cgroup, found.claimed) == (0, peer.GONE, os.getpid())
        monkeypatch.setattr(peer, "_alive", lambda _: None)  # before Linux 6.5: by the age of the process
        started = peer._start(os.getpid()) / os.sysconf("SC_CLK_TCK")
        assert identify(here, started - 1).pid == 0
        assert identify(here, started + 1).pid == os.getpid()


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("seed", range(20))
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


def test_two_users_with_two_cgroups_each_leave_room_for_others() -> None:
    limits, options = receiver_limits.Limits(Options()), Options()
    filled(limits, *(CgroupUser(uid, f"/{uid}{part}") for uid in (1, 2) for part in "ab"))

    assert limits._connections["all", ""] == options.connections * 7 / 8
    assert limits.full(CgroupUser(3, "/c")) == ""


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


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("message", [b"", b"x"])
def test_a_newcomer_is_seen_behind_connections_of_a_range_of_users(
    message: bytes, make: Callable[..., Sessions]
) -> None:
    listener = make()
    receiver = listener.receiver_pid()

    def act() -> None:
        signal.alarm(60)
        join.write_text("0")
        for uid in itertools.cycle(range(100_000, 165_536)):
            os.setresuid(-1, uid, -1)
            with contextlib.suppress(OSError), connect(listener) as client:
                if message:
                    client.send(message)
            os.setresuid(-1, 0, -1)

    with cgroup(f"range-{os.getpid()}") as join:
        children = [forked(act) for _ in range(2)]
        try:
            until(lambda: listener.counters().rejected["connect_rate"] > 1000)
            for _ in range(3):
                name = os.urandom(16).hex()
                with connect_at_last(listener) as newcomer:
                    newcomer.send(hello(name))
                    newcomer.send(snap(3, name))
                    reported(listener, name, 3)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    assert listener.receiver_pid() == receiver


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


def test_a_blocked_owner_stops_only_its_own_closes() -> None:
    closer = Closer()
    blocked, other = CgroupUser(1, ""), CgroupUser(2, "")
    evil, silent = lingering()
    reading, writing = os.pipe()
    with silent:
        closer.close(blocked, [evil.detach()])
        until(lambda: closer.blocked(0.2) == [blocked])
        closer.close(other, [writing])
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        assert poll.poll(5000)  # the end of the pipe
        assert closer.blocked(0.2) == [blocked]
        until(lambda: closer.total == 1)
    os.close(reading)
    until(lambda: closer.total == 0)
    assert MAX_THREADS > 1
