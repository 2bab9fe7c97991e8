"""The listener: leases, guards, and whose socket it is."""

import contextlib
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpugauge.hook.client import QUEUE
from gpugauge.sessions import listener as sessions
from gpugauge.sessions.connection import BURST
from gpugauge.sessions.listener import Sessions, SessionsError
from gpugauge.sessions.session import ENDS, Session
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_page

ONE = "1" * 32
TWO = "2" * 32


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Sessions]:
    listener = Sessions(str(tmp_path / "gpugauge" / "hook.sock"), max_connections=8, max_connections_per_user=4)
    listener.start()
    yield listener
    listener.stop()


@pytest.fixture
def connect(listener: Sessions) -> Iterator[Callable[[], socket.socket]]:
    opened = []

    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.append(client)
        client.settimeout(5)
        client.connect(str(listener.path))
        return client

    yield connect
    for client in opened:
        client.close()


def hello(session: str = ONE, **facts: str) -> bytes:
    return wire.encode(wire.Hello(session, 0, pid=1, facts=facts))


def snap(steps: int, session: str = ONE) -> bytes:
    return wire.encode(wire.Snap(session, steps, steps=wire.Progress(steps)))


def page(seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, size: int = wire_page.PAGE_BYTES) -> int:
    """Return a memfd that shows the phase training since the beginning of time."""
    memory = bytearray(wire_page.PAGE_BYTES)
    wire_page.write_head(memory)
    wire_page.write(memory, 1, wire_page.PHASES.index("training"), 0, 3, 4, [0] * len(wire_page.PHASES))
    descriptor = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.write(descriptor, memory)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def opened_again(flags: int) -> int:
    """Return another way to a sealed page, which has its seals and its size."""
    descriptor = page()
    again = os.open(f"/proc/self/fd/{descriptor}", flags)
    os.close(descriptor)
    return again


def open_pages() -> int:
    links = list(Path("/proc/self/fd").iterdir())
    return sum("memfd:page" in str(link.readlink()) for link in links if link.is_symlink())


def steps_of(session: Session) -> int | None:
    return session.snap.steps.count if session.snap and session.snap.steps else None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the listener did not get there"
        time.sleep(0.005)


def closed_by_daemon(client: socket.socket) -> bool:
    try:
        return not client.recv(1)
    except ConnectionError:
        return True


def test_a_session_is_what_the_last_messages_said(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.send(hello(torch="2.13"))
    client.send(snap(1))
    client.send(snap(5))
    until(lambda: [steps_of(s) for s in listener.view()] == [5])
    (session,) = listener.view()
    assert session.hello.facts == {"torch": "2.13"}
    assert session.connected
    assert session.peer_pid > 1


def test_the_page_is_read_while_the_process_says_nothing(
    listener: Sessions, connect: Callable[[], socket.socket]
) -> None:
    client, descriptor = connect(), page()
    socket.send_fds(client, [hello()], [descriptor])
    until(lambda: [s.page.phase for s in listener.view() if s.page] == ["training"])
    before = listener.view()[0].page
    assert before is not None
    assert (before.steps, before.batches) == (3, 4)
    wire_page_now = bytearray(wire_page.PAGE_BYTES)
    wire_page.write_head(wire_page_now)
    wire_page.write(wire_page_now, 2, wire_page.PHASES.index("loading"), 0, 5, 6, [0] * len(wire_page.PHASES))
    os.pwrite(descriptor, wire_page_now, 0)
    os.close(descriptor)
    until(lambda: [s.page.phase for s in listener.view() if s.page] == ["loading"])
    after = listener.view()[0].page
    assert after is not None
    assert after.seconds["training"] >= before.seconds["training"]  # though the page does not say so any more
    client.close()
    until(lambda: [s.connected for s in listener.view()] == [False])
    assert [s.page.steps for s in listener.view() if s.page] == [5]
    assert open_pages() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: page(seals=0),
        lambda: page(seals=fcntl.F_SEAL_GROW),
        lambda: page(size=1 << 20),
        lambda: os.open("/dev/zero", os.O_RDONLY),
        lambda: os.memfd_create("page"),
        lambda: opened_again(os.O_WRONLY),
        lambda: opened_again(os.O_PATH),
    ],
)
def test_what_is_no_sealed_page_is_closed_unseen(
    make: Callable[[], int], listener: Sessions, connect: Callable[[], socket.socket]
) -> None:
    client, descriptor = connect(), make()
    socket.send_fds(client, [hello()], [descriptor])
    os.close(descriptor)
    client.send(snap(1))
    until(lambda: [steps_of(s) for s in listener.view()] == [1])
    assert listener.view()[0].page is None
    assert open_pages() == 0


def test_only_the_first_message_may_bring_a_page(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.send(hello())
    descriptors = [page() for _ in range(3)]
    socket.send_fds(client, [snap(1)], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    client.send(snap(2))
    until(lambda: [steps_of(s) for s in listener.view()] == [2])
    assert listener.view()[0].page is None
    assert open_pages() == 0


def test_an_unchanged_view_is_the_same_object(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    connect().send(hello())
    until(lambda: len(listener.view()) == 1)
    assert listener.view() is listener.view()
    assert listener.counters() is listener.counters()


@pytest.mark.parametrize(
    ("reason", "shown"), [("out_of_memory", "out_of_memory"), ("a newer hook's word", "other"), (None, "killed")]
)
def test_the_end_of_the_connection_ends_the_session(
    reason: str | None, shown: str, listener: Sessions, connect: Callable[[], socket.socket]
) -> None:
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
    assert {**dict.fromkeys(ENDS, 0), shown: 1} == listener.counters().ended


def test_an_ended_session_lingers_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SWEEP_SECONDS", 0.01)
    listener = Sessions(str(tmp_path / "s"), linger_seconds=0.05)
    listener.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(listener.path))
        client.send(hello())
        until(lambda: len(listener.view()) == 1)
    until(lambda: listener.view() == ())
    listener.stop()


def test_many_ended_sessions_push_out_the_oldest(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    names = [f"{number:032}" for number in range(10)]
    for name in names:
        client = connect()
        client.send(hello(name))
        client.close()
    until(lambda: names[2:] == [s.hello.session for s in listener.view()])


def test_a_session_that_comes_back_goes_on(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    first = connect()
    first.send(hello())
    first.send(snap(3))
    first.close()
    until(lambda: [s.connected for s in listener.view()] == [False])
    connect().send(hello())
    until(lambda: [s.connected for s in listener.view()] == [True])
    assert [steps_of(s) for s in listener.view()] == [3]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([b"x" * (wire.MAX_BYTES + 1)], "oversized"),
        ([b"GET /metrics"], "foreign"),
        ([hello()[:-9]], "foreign"),
        ([snap(1)], "malformed"),
        ([hello(), hello()], "malformed"),
        ([hello(), snap(1, TWO)], "malformed"),
        ([hello(), b'{"v":[1,0],"kind":"snap"}'], "malformed"),
        ([hello(), *(snap(1) for _ in range(BURST + 15))], "rate"),
    ],
)
def test_a_bad_message_closes_its_connection_only(
    messages: list[bytes],
    reason: str,
    listener: Sessions,
    connect: Callable[[], socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = connect()
    good.send(hello("9" * 32))
    bad = connect()
    with contextlib.suppress(OSError):  # it may be closed before the last
        for message in messages:
            bad.send(message)
    assert closed_by_daemon(bad)
    until(lambda: listener.counters().rejected[reason] == 1)
    good.send(snap(7, "9" * 32))
    until(lambda: 7 in [steps_of(s) for s in listener.view() if s.connected])
    assert sum(listener.counters().rejected.values()) == 1
    assert [vars(record)["fields"]["reason"] for record in caplog.records] == [reason]


def test_what_was_sent_while_the_daemon_stood_still_is_no_fault_of_the_sender(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUE)
    away = Sessions(str(path))
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
        away.start(server)
        until(lambda: [steps_of(s) for s in away.view()] == [sent])
        assert sum(away.counters().rejected.values()) == 0
        away.stop()
    assert sent > 20


def test_a_repeated_fault_is_logged_once(
    listener: Sessions, connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        client = connect()
        client.send(b"rubbish")
        assert closed_by_daemon(client)
    until(lambda: listener.counters().rejected["foreign"] == 3)
    assert len(caplog.records) == 1


def test_a_living_session_cannot_be_taken_over(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    owner, thief = connect(), connect()
    owner.send(hello(torch="mine"))
    until(lambda: len(listener.view()) == 1)
    thief.send(hello(torch="other"))
    assert closed_by_daemon(thief)
    assert [(s.hello.facts["torch"], s.connected) for s in listener.view()] == [("mine", True)]


def test_connections_are_limited_by_user(listener: Sessions, connect: Callable[[], socket.socket]) -> None:
    held = [connect() for _ in range(4)]
    surplus = connect()
    assert closed_by_daemon(surplus)
    assert listener.counters().rejected["connections"] == 1
    held[0].send(hello())
    held[0].close()
    until(lambda: [s.connected for s in listener.view()] == [False])
    connect().send(hello(TWO))
    until(lambda: TWO in [s.hello.session for s in listener.view() if s.connected])


def test_a_connection_that_says_nothing_is_closed(
    listener: Sessions, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "HELLO_SECONDS", 0.0)
    assert closed_by_daemon(connect())
    assert listener.counters().rejected["silent"] == 1


def test_every_user_may_connect(listener: Sessions) -> None:
    assert stat.S_IMODE(listener.path.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o666


def test_the_socket_of_a_living_daemon_is_not_taken(listener: Sessions) -> None:
    with pytest.raises(SessionsError, match="another daemon listens there"):
        Sessions(str(listener.path)).start()
    assert listener.path.exists()


def test_what_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    path.write_text("precious")
    with pytest.raises(SessionsError, match="something that is not a socket"):
        Sessions(str(path)).start()
    assert path.read_text() == "precious"


def test_a_path_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(SessionsError, match="AF_UNIX path too long"):
        Sessions(str(tmp_path / ("x" * 120))).start()


def test_the_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
        dead.listen()
    listener = Sessions(str(path))
    listener.start()
    listener.stop()
    assert not path.exists()


def test_stop_leaves_the_socket_of_a_successor(listener: Sessions) -> None:
    listener.path.unlink()
    successor = Sessions(str(listener.path))
    successor.start()
    listener.stop()
    assert listener.path.exists()
    successor.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_listener_that_broke_says_so(listener: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(listener, "_accept", broken)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(listener.path))
        assert listener._thread is not None
        listener._thread.join(10)
    with pytest.raises(SessionsError, match="has ended"):
        listener.view()


def test_listener_goes_on_when_memory_was_short(
    listener: Sessions, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, short = listener._accept, [MemoryError(), MemoryError()]

    def sometimes() -> None:
        if short:
            raise short.pop()
        accept()

    monkeypatch.setattr(listener, "_accept", sometimes)
    connect().send(hello())
    until(lambda: len(listener.view()) == 1)

    assert short == []


def test_socket_of_the_service_manager_is_taken_and_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        sessions = Sessions(str(path))
        sessions.start(theirs.dup())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(path))
            client.settimeout(5)
            client.send(b"not ours")
            closed = client.recv(1)
        sessions.stop()

        assert closed == b""
        assert path.exists()


@pytest.mark.parametrize(("cgroups", "held"), [(("a", "a", "a", "b"), 3), (("", "", "", ""), 4)])
def test_no_container_takes_the_places_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: tuple[str, ...], held: int
) -> None:
    names = list(cgroups)
    monkeypatch.setattr("gpugauge.sessions.connection._cgroup", lambda _: names.pop(0))
    listener = Sessions(str(tmp_path / "hook.sock"), max_connections_per_cgroup=2)
    listener.start()
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in cgroups]
    try:
        for client in clients:
            client.connect(str(listener.path))
        refused = len(cgroups) - held
        until(lambda: not names and listener.counters().rejected["connections"] == refused)
    finally:
        for client in clients:
            client.close()
        listener.stop()


def test_nobody_wakes_up_while_nothing_is_connected(
    listener: Sessions, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SWEEP_SECONDS", 0.01)
    swept: list[float] = []
    monkeypatch.setattr(listener, "_sweep", swept.append)
    time.sleep(0.2)
    assert swept == []
    client = connect()
    until(lambda: len(swept) > 2)
    client.close()
    until(lambda: not listener._connections)
    before = len(swept)
    time.sleep(0.2)
    assert len(swept) <= before + 1
