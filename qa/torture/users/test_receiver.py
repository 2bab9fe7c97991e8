"""The real receiver of the hook socket: it hangs, ends, is killed, and is attacked by other users. None of that stops
the daemon or the sessions of others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.needs import require
from tests.sessions.hooks import (
    HONEST,
    ONE,
    TWO,
    connect,
    forked,
    hello,
    reported,
    shared_record,
    snap,
    started,
    steps,
    until,
)

from gpugauge.sessions.budget import Budget
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.receiver.closing import MAX_THREADS, Closer
from gpugauge.sessions.receiver.peer import CgroupUser
from qa.torture.users.groups import cgroup


@pytest.fixture
def make() -> Iterator[Callable[..., Sessions]]:
    """Return a function that starts a listener with options, in a folder that every user may open."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as listeners:
        Path(folder).chmod(0o755)

        def make(**options: Any) -> Sessions:
            return listeners.enter_context(started(Path(folder, "hook.sock"), **options))

        yield make


@pytest.fixture
def needs_root() -> None:
    require(os.geteuid() == 0, "only root can change the user")


def connect_at_last(listener: Sessions) -> socket.socket:
    """Connect as the hook does: again after half a second while the queue is full."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return connect(listener)
        time.sleep(0.5)


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


def refused_as(uid: int, listener: Sessions) -> bool:
    """Return whether the daemon ends a new connection of a user at once."""

    def act() -> None:
        with contextlib.suppress(ConnectionError):
            assert connect(listener).recv(1) == b""

    return os.waitpid(forked(act, uid), 0)[1] == 0


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
    """A process connects, passes the connection to another one, and ends: its cgroup cannot be read any more. It may be
    that of connections whose processes live.
    """
    listener = make(connections_by_cgroup=4, connections_by_user=100)
    alive = connect(listener)
    alive.send(hello(TWO))
    until(lambda: len(listener.view()) == 1)
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
    until(lambda: len(listener.view()) == 2)
    assert sorted(session.peer_pid for session in listener.view()) == [0, os.getpid()]  # one is not proven
    for client in (*held, alive):
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
