"""The receiver of the hook's socket, in this process: identities, refusals, its path, what a datagram cannot carry."""

from __future__ import annotations

import _socket
import _thread
import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import posix
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import cases, seeds
from tests.needs import require
from tests.sessions.hooks import until

from gpugauge.sessions.receiver import peer, socketfile
from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.receiver.channel import Channel
from gpugauge.sessions.receiver.closing import MAX_THREADS, Closer
from gpugauge.sessions.receiver.limits import Limits
from gpugauge.sessions.receiver.loop import _BLOCKED_SECONDS, Receiver, Refusals
from gpugauge.sessions.receiver.main import main
from gpugauge.sessions.receiver.peer import CgroupUser
from gpugauge.sessions.receiver.rights import sort
from gpugauge.sessions.receiver.socketfile import SocketFile, collects_in_close

SECONDS = 20.0  # after which a test has failed


def fallocate(descriptor: int, mode: int, offset: int, size: int) -> int:
    """Call fallocate(2), which the module os has without a mode."""
    call = ctypes.CDLL(None).fallocate
    call.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long
    return int(call(descriptor, mode, offset, size))


def descriptors(name: str = "") -> int:
    """Return how many descriptors this process has of files of a name, or of all, without those of earlier tests."""
    gc.collect()
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found += name in str(each.readlink())
    return found


def refused(body: bytes) -> tuple[int, str, str]:
    """Return number, reason and detail of a datagram about refused connections."""
    reason, _, detail = body[p.REFUSED.size :].partition(b"\0")
    return p.REFUSED.unpack_from(body)[1], reason.decode(), detail.decode()


class Running:
    """A receiver, the daemon's end of its channel, and clients."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, **options: float) -> None:
        self.daemon, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(self.daemon).setblocking(False)
        self.path, channel = folder / "s", _socket.socket(fileno=theirs.detach())
        self.file = SocketFile(str(self.path), 0o666, 4096)
        self.receiver = Receiver(Channel(channel), self.file, p.Options(**options))
        self._stack = stack
        stack.callback(lambda: self.file.socket.close())  # noqa: PLW0108 # it may be another one then
        stack.callback(channel.close)
        stack.callback(lambda: list(map(_socket.socket.close, (each.sock for each in self.receiver._peers.values()))))

    def client(self, *messages: bytes) -> socket.socket:
        """Connect and send messages."""
        made = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        made.connect(str(self.path))
        for message in messages:
            made.send(message)
        return made

    def after(self, turns: int = 3) -> list[tuple[int, int, bytes]]:
        """Return kind, number and body of what the daemon gets in some turns."""
        found = []
        for _ in range(turns):
            self.receiver.turn(0)
            with contextlib.suppress(BlockingIOError):
                while data := self.daemon.recv(p.MAX_DATAGRAM_BYTES):
                    found.append((*p.HEADER.unpack_from(data), data[p.HEADER.size :]))
        of_connections = {p.OPENED, p.MESSAGE, p.ENDED}
        assert all((kind in of_connections) == (number > 0) for kind, number, _ in found)
        return found

    def beat(self) -> list[tuple[int, int, bytes]]:
        """Return the same with what is due every second."""
        self.receiver._beat_due = 0.0
        return self.after(1)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def running(stack: contextlib.ExitStack, tmp_path: Path) -> Running:
    made = Running(stack, tmp_path)
    assert [kind for kind, *_ in made.after(1)][:1] == [p.READY]
    return made


def of(kind: int, found: list[tuple[int, int, bytes]]) -> list[tuple[int, bytes]]:
    return [(number, body) for each, number, body in found if each == kind]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[tuple[int, socket.socket]]:
    """A process that connects and waits, and the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "c"))
        server.listen()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(str(tmp_path / "c"))
                time.sleep(SECONDS)
            os._exit(0)
        accepted, _ = server.accept()
    with accepted:
        yield pid, accepted
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_process_is_alive_until_it_ends(child: tuple[int, socket.socket]) -> None:
    pid, sock = child
    before = descriptors("pidfd")
    require([int(part) for part in os.uname().release.split(".")[:2]] >= [6, 5], "Linux 6.5: pidfds of peers")

    assert peer._alive(sock) is True
    assert peer.cgroup_at(pid) == peer.cgroup_at(os.getpid()) != ""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert peer._alive(sock) is False
    os.waitpid(pid, 0)
    assert peer._alive(sock) is False
    assert (peer.cgroup_at(pid), peer.cgroup_at(0), peer.PASSED_ON) == ("gone", "", "passed on")
    assert peer.cgroup_at(1) == peer.cgroup_of(Path("/proc/1/cgroup").read_text())
    assert descriptors("pidfd") == before


def test_a_cgroup_of_any_bytes_and_a_process_of_another_pid_namespace(
    child: tuple[int, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, sock = child
    with monkeypatch.context() as changed:
        changed.setattr(peer, "_read", lambda _: b"0::/a\xff\n")
        assert peer.cgroup_at(pid) == "/a\ufffd"
    assert peer.identify(sock, 0.0).pid == pid
    with monkeypatch.context() as changed:  # before Linux 6.5: a process that is older than the connection
        changed.setattr(peer, "_alive", lambda _: None)
        for since, proven in ((time.clock_gettime(time.CLOCK_BOOTTIME) + 1.0, pid), (1.0, 0)):
            assert peer.identify(sock, since).pid == proven
    with monkeypatch.context() as changed:  # where /proc hides it, it is not proven
        changed.setattr(peer, "_start", lambda _: 0)
        found = peer.identify(sock, 0.0)
        assert (found.pid, found.owner.cgroup, found.claimed) == (0, "gone", pid)
    monkeypatch.setattr(peer, "user", lambda _: (0, 7))
    found = peer.identify(sock, 0.0)
    assert (found.pid, found.start, found.owner, found.claimed) == (0, 0, CgroupUser(7, ""), 0)


def test_a_connection_that_cannot_be_looked_at_may_hold_messages() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.close()
    there.close()
    assert socketfile.holds_messages(here)


@cases(("number", "expected"), [(errno.ENOPROTOOPT, None), (errno.ESRCH, False)])
def test_what_a_kernel_without_pidfds_of_peers_answers(number: int, expected: bool | None) -> None:
    class Sock:
        def getsockopt(self, *_: object) -> bytes:
            raise OSError(number, "")

    assert peer._alive(Sock()) is expected  # type: ignore[arg-type]  # a double


def test_the_connection_of_a_process_that_has_ended_is_held_by_another_one(child: tuple[int, socket.socket]) -> None:
    pid, _ = child
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    with here:
        with there:
            found = [peer._passed_on(here, *each) for each in ((pid, None), (os.getpid(), None), (pid, True))]
            assert (found, peer._passed_on(here, pid, alive=False)) == ([True, False, False], True)
        assert not peer._passed_on(here, pid, None)


class Full:
    """A socket whose next datagrams fail."""

    def __init__(self, *errors: int) -> None:
        self.errors, self.sent = list(errors), list[tuple[bytes, bool]]()

    def setblocking(self, flag: bool) -> None: ...

    def fileno(self) -> int:
        return 0

    def sendmsg(self, data: list[bytes], rights: list[Any], _: int) -> None:
        if self.errors:
            raise OSError(self.errors.pop(0), "")
        self.sent.append((data[0][p.HEADER.size :], bool(rights)))


def test_a_record_that_the_kernel_does_not_pass_on_is_closed_and_its_message_sent() -> None:
    full, (record, other) = Full(errno.ETOOMANYREFS), os.pipe()
    channel = Channel(full)  # type: ignore[arg-type]  # a double

    channel.send(p.MESSAGE, 1, b"hello", [record])
    channel.send(p.MESSAGE, 1, b"snap", [other])
    assert (channel.running, channel.full) == (True, 2)
    channel._flush()

    assert full.sent == [(b"hello", False), (b"snap", True)]
    for descriptor in (record, other):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    gone = Channel(Full(errno.EPIPE))  # type: ignore[arg-type]  # a double
    gone.send(p.ALIVE)
    assert not gone.running
    ends = Full(errno.EAGAIN, errno.EPIPE)
    channel = Channel(ends)  # type: ignore[arg-type]  # a double
    for body in (b"1", b"2"):
        channel.send(p.MESSAGE, 1, body)
    assert channel.running
    channel.wait(0.0)
    assert (channel.running, ends.sent, channel.full) == (False, [], 2)


def test_the_record_among_the_descriptors_of_a_message() -> None:
    record, bare = (os.memfd_create(name, os.MFD_ALLOW_SEALING) for name in ("record", "bare"))
    for descriptor in (record, bare):
        os.truncate(descriptor, 4096)
    fcntl.fcntl(record, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    data = struct.pack("3i", bare, record, record) + b"\0\0"  # cut off

    assert sort([(0, 0, data)], 4096) == (record, [bare, record])
    assert sort([(0, 0, data)], 0) == (None, [bare, record, record])
    assert sort([(0, 0, data)], 8192) == (None, [bare, record, record])
    os.pwrite(record, b"steps", 0)  # as each hook does
    assert sort([(0, 0, data)], 4096) == (record, [bare, record])
    os.close(record)
    os.close(bare)


@seeds(range(60))
def test_a_record_has_little_memory_behind_its_end(seed: int) -> None:
    """Whoever closes the last descriptor of it frees that, 0.1 s a GiB."""
    dice = random.Random(seed)
    allocated, seals = dice.choice((0, 4096, 4 << 20, 5 << 20, 9 << 20)), dice.choice((0, 1, 2, 3, 3, 3, 3, 3))
    record = os.memfd_create("record", os.MFD_ALLOW_SEALING)
    os.truncate(record, 4096)
    if allocated:
        require(fallocate(record, 1, 0, allocated) == 0, "memory that is kept behind the end")
    for number, seal in enumerate((fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW)):
        if seals >> number & 1:
            fcntl.fcntl(record, fcntl.F_ADD_SEALS, seal)
    is_record = seals == 3 and allocated <= 4 << 20
    data = struct.pack("i", record)
    assert sort([(0, 0, data)], 4096) == ((record, []) if is_record else (None, [record]))
    os.close(record)


@cases(
    ("release", "collects"),
    [
        ("5.15.0-1", True),
        ("6.8.12", True),
        ("6.8-rc10", True),
        ("6.8+", True),
        ("6.9.0", False),
        ("6.18.44-fc", False),
        ("7.0-rc1", False),
    ],
)
def test_kernels_that_collect_garbage_in_a_close(release: str, collects: bool) -> None:
    assert collects_in_close(release) == collects


def test_a_path_that_was_removed_is_opened_again(running: Running) -> None:
    before = descriptors()
    running.path.unlink()

    ((_, said),) = of(p.REOPENED, running.beat())
    assert said == b"the hook's socket was removed, and is opened again"
    assert not of(p.REOPENED, running.beat())
    until(lambda: descriptors() == before)
    running.client(b"hello")
    assert [body for _, body in of(p.MESSAGE, running.after())] == [b"hello"]


def test_new_connections_pass_descriptors_as_it_is_said(running: Running) -> None:
    require(running.file.pass_descriptors(allowed=True), "Linux 6.16: connections without descriptors")
    said = [running.file.pass_descriptors(allowed=flag) for flag in (False, True)]
    running.file.pass_descriptors(allowed=False)
    running.client(b"hello")
    running.after()
    (accepted,) = running.receiver._peers.values()

    assert said == [True, True]
    assert accepted.sock.getsockopt(_socket.SOL_SOCKET, socketfile._SO_PASSRIGHTS) == 0
    assert not socketfile.close_may_block(accepted.sock)


def test_who_goes_over_a_limit_is_refused_with_its_reason(running: Running) -> None:
    first = running.client(b"hello")
    ((number, _),) = of(p.MESSAGE, running.after())
    running.daemon.send(p.HEADER.pack(p.CLOSE, number))
    found = running.after() + running.beat()
    assert of(p.ENDED, found) == [(number, b"rejected")]
    assert not of(p.REJECTED, found)  # the daemon knows why
    assert first.recv(1) == b""

    running.client(b"x" * 16 * 1024, b"x" * (16 * 1024 + 1))
    found = running.after(4) + running.beat()
    assert [len(body) for _, body in of(p.MESSAGE, found)] == [16 * 1024]
    assert [refused(body)[1] for _, body in of(p.REJECTED, found)] == ["oversized"]

    spare, before = os.open("/dev/null", os.O_RDONLY), descriptors()
    for count, expected in ((32, []), (33, ["malformed"])):
        client = running.client()
        socket.send_fds(client, [b"hello"], [spare] * count)
        assert [refused(body)[1] for _, body in of(p.REJECTED, running.after() + running.beat())] == expected
    until(lambda: descriptors() == before + 3)  # both clients, and the connection of the first one
    os.close(spare)

    owner = next(iter(running.receiver._peers.values())).owner
    body = p.BAN_BODY.pack(owner.uid, 60.0) + owner.cgroup.encode()
    running.daemon.send(p.HEADER.pack(p.BAN, 0) + body)
    running.after()
    running.client()
    said = of(p.REJECTED, running.after() + running.beat())
    assert [refused(body) for _, body in said] == [(1, "banned", "the user is banned for some minutes")]


def test_a_burst_of_messages_is_taken_and_no_more(running: Running) -> None:
    client, taken, said, end = running.client(), 0, list[tuple[int, bytes]](), time.monotonic() + SECONDS
    client.setblocking(False)
    while not said and time.monotonic() < end:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            client.send(b"m")
        found = running.after(1)
        taken += len(of(p.MESSAGE, found))
        said = of(p.ENDED, found)

    assert said == [(1, b"rate")]
    assert 300 <= taken < 300 + p.Options.rate * SECONDS


@seeds(range(40))
def test_a_connection_may_send_ten_messages_a_second_and_after_a_pause_300(
    seed: int, stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, now = random.Random(seed), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    running, credit = Running(stack, tmp_path, messages_by_owner=1e9, bytes_by_owner=1e12), 299.0
    client = running.client(b"hello")
    running.after()
    for _ in range(12):
        passed, count = dice.choice((0.0, 1.0, 7.5, 40.0)), dice.choice((0, 1, 20, 150))
        now[0] += passed
        credit = min(300.0, credit + 10 * passed)
        for _ in range(count):
            client.send(b"m")
        taken = sum(len(of(p.MESSAGE, running.after(1))) for _ in range(count + 1))
        assert taken == min(count, int(credit))
        if count > credit:
            assert not running.receiver._peers
            break
        credit -= count


@cases("group", ["user", "cgroup"])
def test_connections_that_come_too_often_are_turned_away_after_some(
    group: str, stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, slept = Running(stack, tmp_path, connections_by_user=2, connects=0.001), list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    if group == "cgroup":  # by many users; it may open twice as many
        users, known = iter(range(10_000)), peer.user
        monkeypatch.setattr("gpugauge.sessions.receiver.loop.user", lambda sock: (known(sock)[0], next(users)))
        monkeypatch.setattr(
            "gpugauge.sessions.receiver.loop.identify",
            lambda *_: peer.Identity(1, 1, CgroupUser(next(users), "/a"), 0.0, 1),
        )
        monkeypatch.setattr("gpugauge.sessions.receiver.loop.cgroup_at", lambda _: "/a")
    limits = Limits(few.receiver._options)
    assert [limits.connects(("user", 1)) for _ in range(257)] == [False] * 256 + [True]

    most = 512 if group == "cgroup" else 256
    for _ in range(most + 44):
        few.client(b"hello")
    found = few.after(9) + few.beat()
    said = Counter[str]()
    for _, body in of(p.REJECTED, found):
        count, reason, _ = refused(body)
        said[reason] += count

    held = len(few.receiver._peers)  # not those that were read: many closes at once pause their owner
    assert (held + said["connections"], said["connect_rate"]) == (most, 44)
    assert held == 2 or group == "cgroup"
    assert slept == [0.02]  # in one batch


def test_an_owner_whose_closes_block_is_banned_and_nobody_else(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.client(b"hello")
    running.after()
    (blocking,) = running.receiver._peers.values()
    other = CgroupUser(blocking.owner.uid + 1, "/other")
    began = {blocking.owner: time.monotonic() - 1.5, other: time.monotonic() - 0.5}
    monkeypatch.setattr(running.receiver._closer, "_running", began)

    found = running.beat()
    assert _BLOCKED_SECONDS == 1.0
    assert [p.BAN_BODY.unpack_from(body) for _, body in of(p.BANNED, found)] == [(blocking.owner.uid, 300.0)]
    assert of(p.ENDED, found) == [(blocking.number, b"banned")]
    assert not running.receiver._limits.banned(other)


@cases("mode", [0o600, None])
def test_the_entry_point_serves_until_the_daemon_ends(mode: int | None, tmp_path: Path) -> None:
    daemon, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = tmp_path / "s"
    pid = os.fork()
    if pid == 0:
        daemon.close()
        main([str(theirs.detach()), str(path), *([f"mode={mode}"] if mode else [])])
    theirs.close()
    daemon.settimeout(SECONDS)
    with daemon, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        kinds = [p.HEADER.unpack_from(daemon.recv(p.MAX_DATAGRAM_BYTES))[0]]
        client.connect(str(path))
        client.send(b"hello")
        while p.MESSAGE not in kinds:
            kinds.append(p.HEADER.unpack_from(daemon.recv(p.MAX_DATAGRAM_BYTES))[0])
        assert path.stat().st_mode & 0o777 == (mode or 0o666)
        daemon.shutdown(socket.SHUT_RDWR)
        assert os.waitpid(pid, 0)[1] == 0
    assert (kinds[0], path.exists()) == (p.READY, False)


@cases("full", [False, True])
def test_the_entry_point_reports_why_it_cannot_start(full: bool, tmp_path: Path) -> None:
    """Also to a daemon that is slow to read."""
    daemon, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while full:
            theirs.send(b"x")
    pid = os.fork()
    if pid == 0:
        daemon.close()
        main([str(theirs.detach()), str(tmp_path / "none" / "s")])
    theirs.close()
    with daemon:
        if full:
            time.sleep(0.5)
        found = list(iter(lambda: daemon.recv(p.MAX_DATAGRAM_BYTES), b""))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert found[-1] == p.HEADER.pack(p.FAILED, 0) + b"No such file or directory"


def test_who_sends_more_than_its_share_waits_but_not_for_long(
    stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Running(stack, tmp_path, messages_by_owner=0.01)
    slow.client(*[b"m"] * 6)

    assert len(of(p.MESSAGE, slow.after(6))) == 3  # the first ones of a connection are read whatever others send
    (waiting,) = slow.receiver._peers.values()
    assert slow.receiver._paused == [waiting]
    assert slow.receiver._resume_due > waiting.read_at
    assert 0 < slow.receiver.wait() <= 0.1
    waiting.read_at -= 4.0
    due = slow.receiver._resume_due
    monkeypatch.setattr(time, "monotonic", lambda: due)
    assert len(of(p.MESSAGE, slow.after(3))) == 1


def test_an_inherited_socket_is_left_alone(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    made.bind(str(tmp_path / "i"))
    made.listen()
    file = SocketFile(str(tmp_path / "i"), 0o600, 1, os.dup(made.fileno()))
    if file.pass_descriptors(allowed=False):  # Linux 6.16
        file = SocketFile(str(tmp_path / "i"), 0o600, 1, file.socket.detach())
        assert made.getsockopt(socket.SOL_SOCKET, socketfile._SO_PASSRIGHTS) == 1
    (tmp_path / "i").rename(tmp_path / "kept")
    said = [file.missing(), file.missing()]
    (tmp_path / "kept").rename(tmp_path / "i")
    said.append(file.missing())
    (tmp_path / "i").unlink()
    said.append(file.missing())
    file.shut()
    file.socket.close()

    assert said[0].startswith("the hook's socket was removed: restart the socket unit")
    assert said[1:] == ["", "", said[0]]


def test_the_path_of_another_daemon_stays(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    first, second = Running(stack, tmp_path), Running(stack, tmp_path)
    client = second.client(b"hello")
    second.after()

    first.receiver.shut()
    assert second.path.exists()
    second.receiver.shut()
    assert not second.path.exists()
    assert client.recv(1) == b""


def test_a_path_that_cannot_be_opened(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    (tmp_path / "taken" / "by a folder").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        SocketFile(str(tmp_path / "taken"), 0o600, 1, None)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]

    (tmp_path / "gone").mkdir()
    running = Running(stack, tmp_path / "gone")
    running.path.unlink()
    running.path.parent.rmdir()
    ((_, said),) = of(p.REOPENED, running.beat())
    assert said == b"the hook's socket was removed, and cannot be opened again: No such file or directory"


def test_a_connection_with_something_in_its_queue_is_closed_by_another_thread(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(running.receiver._closer, "close", lambda _, given: closed.extend(given))
    monkeypatch.setattr(socketfile, "COLLECTS_IN_CLOSE", False)
    running.client(b"hello").close()
    running.after()
    assert (closed, running.receiver._peers) == ([], {})

    running.client(b"x" * (p.Options.message_bytes + 1), b"behind")
    running.after()
    assert len(closed) == 1
    os.close(closed[0])


def test_what_many_unfinished_closes_change(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = running.receiver
    closer, off = receiver._closer, running.file.pass_descriptors(allowed=True)
    stuck = {CgroupUser(-2 - number, ""): time.monotonic() - 2.0 for number in range(MAX_THREADS)}

    def found() -> tuple[bool, bool]:
        """Return whether new connections pass no descriptors, and whether a successor is wanted."""
        said = bool(of(p.REPLACE, running.beat()))
        return receiver._passing_off, said

    assert found() == (False, False)
    monkeypatch.setattr(closer, "total", 65)
    assert found() == (off, False)
    monkeypatch.setattr(closer, "total", 64)
    assert found() == (False, False)
    monkeypatch.setattr(closer, "total", 0)
    assert found() == (False, False)
    monkeypatch.setattr(receiver, "_capacity", 10)
    monkeypatch.setattr(closer, "total", 6)
    assert found() == (False, True)
    monkeypatch.setattr(closer, "total", 0)
    monkeypatch.setattr(closer, "_running", stuck)
    assert found() == (off, True)
    monkeypatch.setattr(closer, "_running", {})
    assert found() == (off, False)  # as long as someone is banned
    receiver._limits._bans.clear()
    assert found() == (False, False)
    if off:
        assert running.file.socket.getsockopt(_socket.SOL_SOCKET, socketfile._SO_PASSRIGHTS) == 1


def test_a_range_of_users_takes_bounded_memory() -> None:
    limits = Limits(p.Options(connects=0.001))
    for uid in range(5000):
        limits.connects(("user", uid))
        limits.read(CgroupUser(uid, f"/{uid}"), 1)
    assert [len(each) for each in (limits._connects, limits._messages, limits._bytes)] == [4096] * 3


def test_a_limit_that_has_no_effect_is_forgotten() -> None:
    limits, owner = Limits(p.Options(connects=1e9)), CgroupUser(1, "/a")
    assert not limits.connects(("user", 1))
    assert limits.ban(owner, 60.0)
    assert not limits.ban(owner, 60.0)
    time.sleep(0.001)

    assert limits.sweep() == 1
    assert (limits._connects, limits.banned(owner)) == ({}, True)


@seeds(range(60))
def test_a_command_is_for_a_connection_that_is_there(seed: int, stack: contextlib.ExitStack, tmp_path: Path) -> None:
    """The daemon may send one to a connection that has ended meanwhile."""
    dice, running = random.Random(seed), Running(stack, tmp_path)
    clients = {number: running.client(b"hello") for number in range(1, 5)}
    running.after()
    closed, asked = set[int](), Counter[int]()
    for _ in range(12):
        kind, number = dice.choice((p.CLOSE, p.ASK, p.ASK, p.ASK)), dice.randint(0, 6)
        running.daemon.send(p.HEADER.pack(kind, number))
        found = running.after(1)
        ends = kind == p.CLOSE and number in clients and number not in closed
        assert of(p.ENDED, found) == ([(number, b"rejected")] if ends else [])
        closed |= {number} if ends else set()
        asked[number] += kind == p.ASK and number not in closed
        assert {*running.receiver._numbers} == clients.keys() - closed
    left = dice.randint(1, 4)  # one may end without a look at what it was asked
    clients.pop(left).close()
    found = running.after(1)
    assert of(p.ENDED, found) == ([] if left in closed else [(left, b"")])
    for number, client in clients.items():
        client.setblocking(False)
        for _ in range(asked[number]):
            assert client.recv(9) == b"?"
        if number in closed:
            assert client.recv(9) == b""
        else:
            with pytest.raises(BlockingIOError):
                client.recv(9)


@seeds(range(40))
def test_at_most_16_closes_run_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owners, over, closer = random.Random(seed).randint(10, 30), threading.Event(), Closer()
    monkeypatch.setattr(posix, "close", lambda _: over.wait(SECONDS))
    for uid in range(owners):
        closer.close(CgroupUser(uid, ""), [1000 + uid, 2000 + uid])
    assert len(closer._running) == min(owners, 16)
    over.set()
    until(lambda: (closer.total, closer._running) == (0, {}))


@seeds(range(60))
def test_all_is_closed_once_threads_can_be_started(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice, closed, closer = random.Random(seed), Counter[int](), Closer()
    start, can = _thread.start_new_thread, [False]

    def starts(*arguments: Any) -> int:
        if not can[0]:
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    monkeypatch.setattr(_thread, "start_new_thread", starts)
    monkeypatch.setattr(posix, "close", lambda descriptor: closed.update([descriptor]))
    given = 0
    for _ in range(dice.randint(1, 8)):
        can[0] = dice.random() < 0.4
        owner, count = CgroupUser(dice.randint(1, 3), ""), dice.randint(1, 4)
        closer.close(owner, [*range(given, given + count)])
        given += count
    can[0] = True
    closer.retry()
    until(lambda: closer.total == 0)
    assert closed == Counter(range(given))
    until(lambda: not closer._running)
    assert (closer._waiting, closer.blocked(0.0)) == ({}, [])


@seeds(range(40))
def test_connections_and_closes_together_are_fewer_than_the_files_that_may_be_open(
    seed: int, stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, running = random.Random(seed), Running(stack, tmp_path)
    most, closing = dice.randint(1, 6), dice.randint(0, 6)
    monkeypatch.setattr(running.receiver, "_capacity", most)
    monkeypatch.setattr(running.receiver._closer, "total", closing)
    for _ in range(5):
        running.client(b"hello")
    found = running.after(4) + running.beat()
    held = max(0, min(5, most - closing))
    assert len(of(p.OPENED, found)) == held
    assert sum(refused(body)[0] for _, body in of(p.REJECTED, found)) == 5 - held


def test_what_has_ended_is_counted_no_more(running: Running, tmp_path: Path) -> None:
    """Also the record of a connection whose first message is refused."""
    record = os.memfd_create(tmp_path.name, os.MFD_ALLOW_SEALING)
    os.truncate(record, 4096)
    fcntl.fcntl(record, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    for _ in range(3):
        client = running.client()
        socket.send_fds(client, [b"x" * (16 * 1024 + 1)], [record])
        running.after()
        client.close()
    with running.client(b"hello"):
        running.after()
    running.after()
    until(lambda: descriptors(tmp_path.name) == 1)
    os.close(record)
    assert running.receiver._limits._connections == {}
    running.receiver._beat_due = time.monotonic() - 5.0
    assert running.receiver.wait() == 0.0


@cases(("waiting", "sent"), [(0, 3), (63, 3), (64, 0), (500, 0)])
def test_refusals_are_reported_unless_the_daemon_reads_nothing(waiting: int, sent: int) -> None:
    refusals, said = Refusals(), list[bytes]()
    for uid in (1, 2, 2, 3):
        refusals.add(uid, "rate", "")
    channel = SimpleNamespace(full=waiting, send=lambda _, body: said.append(body))
    for _ in range(2):
        refusals.report(channel)  # type: ignore[arg-type]  # a double
    assert [p.REFUSED.unpack_from(body) for body in said] == [(1, 1), (2, 2), (3, 1)][:sent]


def test_a_beat_closes_what_could_not_be_closed_before(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    closer, (descriptor, other) = running.receiver._closer, os.pipe()
    with monkeypatch.context() as changed:
        changed.setattr(closer, "_start", closer._running.pop)
        closer.close(CgroupUser(1, ""), [descriptor, other])
    assert closer.total == 2
    running.beat()
    until(lambda: closer.total == 0)


def test_each_beat_reports_what_is_open_and_banned(running: Running) -> None:
    for count in (1, 2):
        running.client(b"hello")
        running.after()
        ((_, body),) = of(p.ALIVE, running.beat())
        assert p.STATE.unpack(body)[:3] == (count, 0, 0)
    for other in (CgroupUser(4000, "/x"), CgroupUser(4001, "/x")):
        running.receiver._limits.ban(other, 60.0)
    ((_, body),) = of(p.ALIVE, running.beat())
    assert p.STATE.unpack(body)[:3] == (2, 0, 2)
    assert 0.0 < p.STATE.unpack(body)[3] <= time.process_time()


def test_a_receiver_that_rests_reports_as_soon_as_something_comes(running: Running) -> None:
    assert of(p.RESTING, running.beat())
    assert 4.0 < running.receiver.wait() <= 5.0
    running.client(b"hello")

    kinds = [kind for kind, *_ in running.after()]
    assert kinds.index(p.ALIVE) < kinds.index(p.OPENED)
    assert p.RESTING not in kinds
    assert 0.0 < running.receiver.wait() <= 1.0


def test_what_the_limit_of_open_files_refuses(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.receiver._capacity, slept = 0, list[float]()
    running.client(b"hello")
    said = of(p.REJECTED, running.after() + running.beat())
    assert [refused(body) for _, body in said] == [(1, "connections", "the limit of open files is reached")]

    class Out:
        def fileno(self) -> int:
            return listening.fileno()

        def _accept(self) -> tuple[int, str]:
            raise OSError(errno.EMFILE, "Too many open files")

    listening = running.file.socket
    running.client(b"hello")
    with monkeypatch.context() as changed:
        changed.setattr(running.file, "socket", Out())
        changed.setattr(time, "sleep", slept.append)
        running.receiver.turn(0)
    said = of(p.REJECTED, running.beat())
    assert (slept, refused(said[0][1])) == ([0.1], (1, "connections", "Too many open files"))


def test_the_process_of_a_connection_is_passed_on_unless_it_was_refused(running: Running) -> None:
    require([int(part) for part in os.uname().release.split(".")[:2]] >= [6, 5], "Linux 6.5: pidfds of peers")

    def passed(end: Callable[[socket.socket, int], object]) -> int:
        client = running.client(b"hello")
        ((number, _),) = of(p.OPENED, running.after())
        end(client, number)
        running.receiver.turn(0)
        running.receiver.turn(0)
        while True:
            data, rights, _, _ = socket.recv_fds(running.daemon, p.MAX_DATAGRAM_BYTES, 4)
            for descriptor in rights:
                os.close(descriptor)
            if p.HEADER.unpack_from(data)[0] == p.ENDED:
                return len(rights)

    assert passed(lambda client, _: client.close()) == 1
    assert passed(lambda _, number: running.daemon.send(p.HEADER.pack(p.CLOSE, number))) == 0


def test_connections_passed_on_count_for_the_largest_cgroup_and_no_user() -> None:
    limits = Limits(p.Options(connections_by_cgroup=40))
    limits.add(CgroupUser(5, ""), 60)
    assert limits.full(CgroupUser(7, peer.PASSED_ON)) == ""
    limits.add(CgroupUser(6, "/a"), 39)
    assert limits.full(CgroupUser(7, peer.PASSED_ON)) == ""
    limits.add(CgroupUser(6, "/a"), 1)
    assert limits.full(CgroupUser(7, peer.PASSED_ON)) == "cgroup"


def test_all_owners_together_may_send_twice_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limits, fresh = Limits(p.Options(messages_by_owner=10.0)), iter(range(1000))

    def taken() -> int:
        count = 0
        while limits.may_read(owner := CgroupUser(next(fresh), "")):
            limits.read(owner, 1)
            count += 1
        return count

    assert taken() == 41  # a burst of two seconds, and one on credit
    now[0] += 1.0
    assert taken() == 20


def test_a_process_that_proc_does_not_show_has_no_start() -> None:
    assert (peer._start(0), peer._start(os.getpid()) > 0) == (0, True)


@seeds(range(30))
def test_the_record_of_a_connection_comes_with_its_first_message(
    seed: int, stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    dice, running = random.Random(seed), Running(stack, tmp_path)
    client, truth, found = running.client(), list[int](), list[int]()
    for number in range(4):
        record = os.memfd_create("record", os.MFD_ALLOW_SEALING)
        os.truncate(record, dice.choice((4096, 4096, 8192)))
        fcntl.fcntl(record, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        sent = [record] if dice.random() < 0.7 else []
        truth.append(bool(sent) and number == 0 and os.fstat(record).st_size == 4096)
        socket.send_fds(client, [b"m"], sent)
        os.close(record)
        running.receiver.turn(0)
        running.receiver.turn(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                data, rights, _, _ = socket.recv_fds(running.daemon, p.MAX_DATAGRAM_BYTES, 4)
                found += [len(rights)] if data[:1] == bytes([p.MESSAGE]) else []
                for descriptor in rights:
                    os.close(descriptor)
    assert found == truth


def test_when_nobody_waited_to_be_accepted_is_known(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is older than that, and was accepted later, is the one that connected."""
    now = [1e6]
    monkeypatch.setattr(time, "clock_gettime", lambda _: now[0])
    for connects in (False, True, False, True):
        now[0] += 1.0
        if connects:
            running.client(b"hello")
        running.receiver.turn(0)
        assert running.receiver._empty_since == now[0]


@cases(("owners", "most"), [("a user", 3 / 4), ("a cgroup", 1 / 2), ("few of each", 1)])
def test_what_shares_of_all_connections_a_user_and_a_cgroup_get(owners: str, most: float) -> None:
    limits, count = Limits(p.Options()), 0
    while True:
        owner = CgroupUser(
            7 if owners == "a user" else count, "/a" if owners == "a cgroup" else f"/{count}" if count % 2 else ""
        )
        if limits.full(owner):
            break
        limits.add(owner, 1)
        count += 1
    assert count == most * 2048


@seeds(range(20))
def test_the_last_eighth_of_all_connections_is_for_those_with_few(seed: int) -> None:
    dice, limits, held = random.Random(seed), Limits(p.Options()), Counter[int]()
    uids = [1, 2, 3, *range(100, 130)]

    def connect(uid: int) -> bool:
        if limits.full(CgroupUser(uid, "")):
            return False
        limits.add(CgroupUser(uid, ""), 1)
        held[uid] += 1
        return True

    while connect(min((1, 2, 3), key=lambda uid: (held[uid], dice.random()))):
        pass
    assert held.total() == 2048 * 7 / 8
    for uid in dice.sample(uids[3:], 30):
        while connect(uid):
            pass
    assert held.total() == 2048
    assert max(held[uid] for uid in uids[3:]) == 2048 / 64


@cases(("size", "most"), [(1, 1500), (16384, 4e6 / 16384)])
def test_how_much_a_user_and_all_may_send_in_a_second(size: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for owners, times in ((1, 1), (9, 2)):
        limits, each = Limits(p.Options()), [CgroupUser(uid, "") for uid in range(owners)]
        # A burst of two seconds, and what one second brings.
        for seconds in (2, 1):
            count = 0
            while owner := next(filter(limits.may_read, each), None):
                limits.read(owner, size)
                count += 1
            assert count == pytest.approx(seconds * times * most, abs=2 + owners)
            now[0] += 1.0


def test_what_else_is_limited() -> None:
    assert len(peer.cgroup_of("0::/" + "a" * 5000)) == 1024
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    here, there = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    file = SocketFile(os.devnull, 0o600, 1, os.dup(there.fileno()))
    assert Receiver(Channel(here), file, p.Options())._capacity == limit - 512
    for each in (here, there, file.socket):
        each.close()
    assert p.MANY_USERS < 0  # no user
    limits, now = Limits(p.Options()), time.monotonic()
    while not limits.connects(("user", 1)):
        pass
    bucket = limits._connects["user", 1]
    assert (bucket._maximum, bucket._rate, bucket._at >= now) == (1536, 20.0, True)


@seeds(range(40))
def test_an_owner_is_banned_for_five_minutes_and_a_silent_connection_closed_after_ten_seconds(
    seed: int, stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, now = random.Random(seed), [5000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    running = Running(stack, tmp_path, connects=1e9)
    running.client()
    running.after()
    opened, said, seconds = now[0], list[tuple[int, str, str]](), 0.0
    while not said:
        now[0] += (seconds := dice.choice((0.5, 3.0, 4.0)))
        said = [refused(body) for _, body in of(p.REJECTED, running.beat())]
    assert now[0] - opened > 10.0 >= now[0] - opened - seconds
    assert said == [(1, "silent", "no hello within 10 seconds")]

    client = running.client(b"hello")
    running.after()
    (peer_,) = running.receiver._peers.values()
    monkeypatch.setattr(running.receiver._closer, "blocked", lambda _: [peer_.owner])
    ((_, body),) = of(p.BANNED, running.beat())
    assert p.BAN_BODY.unpack_from(body) == (peer_.owner.uid, 300.0)
    monkeypatch.setattr(running.receiver._closer, "blocked", lambda _: [])
    assert client.recv(1) == b""
    since = now[0]
    while now[0] < since + 300.0:
        now[0] += dice.choice((0.0, 50.0, 99.0, 100.0, 299.0))
        running.client(b"hello")
        found = running.after() + running.beat()
        banned = now[0] < since + 300.0
        assert [refused(body)[1] for _, body in of(p.REJECTED, found)] == ["banned"] * banned


@seeds(range(10))
def test_a_turn_admits_256_and_the_ends_before_are_read_in_between(
    seed: int, stack: contextlib.ExitStack, tmp_path: Path
) -> None:
    dice, running = random.Random(seed), Running(stack, tmp_path)
    count, admitted = dice.choice((100, 256, 300, 600)), 0
    for _ in range(count):
        running.client()
    while admitted < count:
        running.receiver.turn(0)
        assert len(running.receiver._peers) - admitted == min(256, count - admitted)
        admitted = len(running.receiver._peers)


def test_a_client_that_reads_nothing_holds_nobody_up(running: Running) -> None:
    running.client(b"hello")
    ((number, _),) = of(p.OPENED, running.after())
    for _ in range(20):
        for _ in range(100):
            running.daemon.send(p.HEADER.pack(p.ASK, number))
        running.receiver.turn(0)
    running.client(b"other")
    assert [body for _, body in of(p.MESSAGE, running.after())] == [b"other"]
