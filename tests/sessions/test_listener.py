"""The listener: sessions, limits, and ownership of the socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from gpugauge.hook.client import SEND_BUFFER_BYTES
from gpugauge.sessions import listener as sessions
from gpugauge.sessions.listener import Sessions, SessionsError
from gpugauge.sessions.receiver.protocol import Options
from gpugauge.sessions.session import SESSION_END_REASONS
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from tests.sessions import hooks
from tests.sessions.hooks import (
    ONE,
    TWO,
    closed_by_daemon,
    ended,
    hello,
    open_records,
    shared_record,
    snap,
    started,
    steps_of,
    until,
    written,
)

Connect: TypeAlias = "Callable[[], socket.socket]"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Sessions]:
    with started(tmp_path / "gpugauge" / "hook.sock", connections=8, connections_by_user=4) as listener:
        yield listener


@pytest.fixture
def connect(listener: Sessions) -> Iterator[Connect]:
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(hooks.connect(listener))


def test_a_session_has_the_values_of_the_last_messages(listener: Sessions, connect: Connect) -> None:
    client = connect()
    client.send(hello(torch="2.13"))
    client.send(snap(1))
    client.send(snap(5))
    until(lambda: [steps_of(s) for s in listener.view()] == [5])
    (session,) = listener.view()
    assert session.hello.facts == {"torch": "2.13"}
    assert session.connected
    assert session.peer_pid > 1


def test_the_record_is_read_while_the_process_sends_nothing(listener: Sessions, connect: Connect) -> None:
    client, descriptor = connect(), shared_record()
    socket.send_fds(client, [hello()], [descriptor])
    until(lambda: [s.record.phase for s in listener.view() if s.record] == ["training"])
    before = listener.view()[0].record
    assert before is not None
    assert (before.steps, before.batches) == (3, 4)
    written(descriptor, "loading", 5)
    os.close(descriptor)
    until(lambda: [s.record.phase for s in listener.view() if s.record] == ["loading"])
    after = listener.view()[0].record
    assert after is not None
    assert after.seconds["training"] >= before.seconds["training"]  # the changed record has 0
    client.close()
    until(lambda: [s.connected for s in listener.view()] == [False])
    assert [s.record.steps for s in listener.view() if s.record] == [5]
    assert open_records() == 0


def test_the_record_is_read_with_each_message(
    listener: Sessions, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SWEEP_INTERVAL_SECONDS", 1000.0)
    client, descriptor = connect(), shared_record()
    socket.send_fds(client, [hello()], [descriptor])
    until(lambda: [s.record.phase for s in listener.view() if s.record] == ["training"])
    written(descriptor, "loading", 5)
    os.close(descriptor)
    client.send(snap(5))
    until(lambda: [steps_of(s) for s in listener.view()] == [5])
    assert [s.record.phase for s in listener.view() if s.record] == ["loading"]


def test_a_descriptor_that_is_no_sealed_record_is_closed_unread(listener: Sessions, connect: Connect) -> None:
    for number, descriptor in enumerate(
        (
            shared_record(seals=0),
            shared_record(seals=fcntl.F_SEAL_GROW),
            shared_record(size=1 << 20),
            os.open("/dev/zero", os.O_RDONLY),
            os.memfd_create("record"),
            hooks.allocated_behind_its_end(64 << 20),
            hooks.opened_again(os.O_WRONLY),
            hooks.opened_again(os.O_PATH),
        )
    ):
        name = f"{number:032}"
        with connect() as client:
            socket.send_fds(client, [hello(name)], [descriptor])
            os.close(descriptor)
            client.send(snap(1, name))
            until(lambda name=name: [steps_of(s) for s in listener.view() if s.hello.session == name] == [1])  # type: ignore[misc]  # the lambda has a default
            assert [s.record for s in listener.view() if s.hello.session == name] == [None], number
    assert open_records() == 0


def test_a_record_with_holes_and_torn_content_changes_nothing(listener: Sessions, connect: Connect) -> None:
    """Punching holes is allowed by the seals, and everything can be written at any time."""
    client, descriptor, draw = connect(), shared_record(), Random(0)
    whole, before = os.pread(descriptor, wire_record.RECORD_BYTES, 0), dict[str, float]()
    socket.send_fds(client, [hello()], [descriptor])
    until(lambda: [s.record.phase for s in listener.view() if s.record] == ["training"])
    for number in range(1, 60):
        if number % 3 == 0:
            assert hooks.fallocate(descriptor, hooks.PUNCH_HOLE | hooks.KEEP_SIZE, 0, wire_record.RECORD_BYTES) == 0
        elif number % 3 == 1:
            os.pwrite(descriptor, draw.randbytes(draw.randrange(1, 600)), draw.randrange(0, 300))
        else:
            os.pwrite(descriptor, whole, 0)
        client.send(snap(number))
        until(lambda number=number: [steps_of(s) for s in listener.view()] == [number])  # type: ignore[misc]  # the lambda has a default
        (found,) = [s.record for s in listener.view() if s.record]
        assert all(seconds >= before.get(phase, 0.0) for phase, seconds in found.seconds.items())
        before = dict(found.seconds)
    os.close(descriptor)


def test_only_the_first_message_may_carry_a_record(listener: Sessions, connect: Connect) -> None:
    client = connect()
    client.send(hello())
    descriptors = [shared_record() for _ in range(3)]
    socket.send_fds(client, [snap(1)], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    client.send(snap(2))
    until(lambda: [steps_of(s) for s in listener.view()] == [2])
    assert listener.view()[0].record is None
    assert open_records() == 0


@pytest.mark.parametrize(
    ("reason", "shown"), [("out_of_memory", "out_of_memory"), ("a newer hook's word", "other"), (None, "other")]
)
def test_the_end_of_the_connection_ends_the_session(
    reason: str | None, shown: str, listener: Sessions, connect: Connect
) -> None:
    # The process continues, and so the kernel has no exit status.
    client = connect()
    client.send(hello())
    client.send(snap(3))
    if reason:
        client.send(wire.encode(wire.Bye(ONE, 4, reason)))
    client.close()
    until(lambda: [s.connected for s in listener.view()] == [False])
    (session,) = listener.view()
    assert shown == session.end_reason
    assert session.ended_at is not None
    assert steps_of(session) == 3
    assert {**dict.fromkeys(SESSION_END_REASONS, 0), shown: 1} == listener.counters().ended


def test_the_oldest_of_too_many_ended_sessions_are_dropped(listener: Sessions, connect: Connect) -> None:
    names = [f"{number:032}" for number in range(10)]
    for name in names:
        client = connect()
        client.send(hello(name))
        client.close()
        ended(listener, name)
    until(lambda: names[2:] == [s.hello.session for s in listener.view()])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b"x" * (wire.MAX_MESSAGE_BYTES + 1)], "oversized"),
        ([b"GET /metrics"], "foreign"),
        ([hello()[:-9]], "foreign"),
        ([snap(1)], "malformed"),
        ([hello(), hello()], "malformed"),
        ([hello(), snap(1, TWO)], "malformed"),
        ([hello(), b'{"v":[1,0],"kind":"snap"}'], "malformed"),
        ([hello(), *(snap(1) for _ in range(round(3 * Options().burst)))], "rate"),
    ],
)
def test_a_bad_message_closes_its_connection_only(
    messages: list[bytes], reason: str, listener: Sessions, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    good = connect()
    good.send(hello("9" * 32))
    bad = connect()
    with contextlib.suppress(OSError):  # the daemon may close it before the last message
        for message in messages:
            bad.send(message)
    assert closed_by_daemon(bad)
    until(lambda: listener.counters().rejected[reason] == 1)
    good.send(snap(7, "9" * 32))
    until(lambda: 7 in [steps_of(s) for s in listener.view() if s.connected])
    assert sum(listener.counters().rejected.values()) == 1
    assert [vars(record)["fields"]["reason"] for record in caplog.records] == [reason]


def test_messages_queued_during_a_pause_of_the_daemon_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    with server, client:
        server.bind(str(path))
        server.listen()
        client.connect(str(path))
        client.send(hello())
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(snap(sent + 1))
                sent += 1
        with started(path, server) as away:
            until(lambda: [steps_of(s) for s in away.view()] == [sent])
            assert sum(away.counters().rejected.values()) == 0
    assert sent > 20


def test_a_connected_session_cannot_be_taken_over(listener: Sessions, connect: Connect) -> None:
    owner, thief = connect(), connect()
    owner.send(hello(torch="mine"))
    until(lambda: len(listener.view()) == 1)
    thief.send(hello(torch="other"))
    assert closed_by_daemon(thief)
    assert [(s.hello.facts["torch"], s.connected) for s in listener.view()] == [("mine", True)]


def test_connections_are_limited_by_user(listener: Sessions, connect: Connect) -> None:
    held = [connect() for _ in range(4)]
    surplus = connect()
    assert closed_by_daemon(surplus)
    until(lambda: listener.counters().rejected["connections"] == 1)
    held[0].send(hello())
    held[0].close()
    until(lambda: [s.connected for s in listener.view()] == [False])
    connect().send(hello(TWO))
    until(lambda: TWO in [s.hello.session for s in listener.view() if s.connected])


def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    with started(tmp_path / "s", hello_seconds=0.1) as listener:
        with hooks.connect(listener) as client:
            assert closed_by_daemon(client)
        until(lambda: listener.counters().rejected["silent"] == 1)


def test_every_user_may_connect(listener: Sessions) -> None:
    assert stat.S_IMODE(listener.path.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o666


def test_the_socket_of_a_running_daemon_is_not_replaced(listener: Sessions) -> None:
    with pytest.raises(SessionsError, match="another daemon listens on it"):
        Sessions(str(listener.path)).start()
    assert listener.path.exists()


def test_a_socket_that_nobody_serves_is_replaced(tmp_path: Path) -> None:
    """Its queue stays full: a process that hangs inside the kernel keeps its sockets open."""
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging, contextlib.ExitStack() as stack:
        hanging.bind(str(path))
        hanging.listen(1)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = stack.enter_context(
                    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                )
                client.connect(str(path))
        with started(path) as listener, hooks.connect(listener) as hook:
            hook.send(hello(ONE))
            until(lambda: len(listener.view()) == 1)


def test_a_path_that_is_not_a_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    path.write_text("precious")
    with pytest.raises(SessionsError, match="the path exists and is not a socket"):
        Sessions(str(path)).start()
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SessionsError, match="AF_UNIX path too long"):
        Sessions(str(tmp_path / ("x" * 120))).start()


def test_the_socket_of_an_ended_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
        dead.listen()
    with started(path):
        assert path.exists()
    assert not path.exists()


def test_stop_keeps_the_socket_of_a_new_daemon(listener: Sessions, tmp_path: Path) -> None:
    with started(tmp_path / "new.sock") as new:
        new.path.rename(listener.path)  # at once: a receiver whose socket is gone is replaced
        listener.stop()
        assert listener.path.exists()


def test_stop_wakes_the_thread_and_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, last = Sessions._turn, threading.Event()

    def watched(listener: Sessions, _: float) -> None:
        turn(listener, 600)
        last.set()

    monkeypatch.setattr(Sessions, "_turn", watched)
    with started(tmp_path / "hook.sock"):
        pass

    assert last.is_set()


def test_view_raises_while_the_thread_fails(listener: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(listener._reception, "watch", broken)
        assert listener._thread
        guard = listener._thread.guard
        hooks.until(lambda: bool(guard.failing))
        with pytest.raises(SessionsError, match="planted"):
            listener.view()
    monkeypatch.setattr("gpugauge.base.guard.SETTLED_SECONDS", 0.0)
    hooks.until(lambda: not guard.failing)
    assert listener.view() == ()


def test_the_listener_continues_after_a_memory_error(
    listener: Sessions, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, short = listener._turn, [MemoryError(), MemoryError()]

    def sometimes(seconds: float) -> None:
        if short:
            raise short.pop()
        turn(seconds)

    monkeypatch.setattr(listener, "_turn", sometimes)
    connect().send(hello())
    until(lambda: len(listener.view()) == 1 and short == [])


def test_the_socket_of_the_service_manager_is_used_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        with started(path, theirs.dup()) as listener, hooks.connect(listener) as client:
            client.send(b"not ours")
            assert client.recv(1) == b""
        assert path.exists()
