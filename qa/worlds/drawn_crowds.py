"""Crowds at the receiver of the hook's socket, drawn by a seed: users, processes and cgroups, what they send, a daemon
that reads at times, closes that block. The sockets are real; time advances in quarters of a second, so that each limit
is met at its exact value, and what is of the kernel or of other threads is drawn.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import fcntl
import os
import posix
import random
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugauge.sessions.receiver import closing, limits, loop, peer, socketfile
from gpugauge.sessions.receiver import protocol as p
from gpugauge.sessions.receiver.channel import Channel
from qa.worlds.recorded import Record

_EVENTS, _TICKS = 500, 100  # the second: of a second, as /proc has them
_MOST_CLIENTS, _MOST_MESSAGES = 200, 60  # of each: fewer than any machine allows
_NUMBERS = count()  # of clients
_STEPS = (0.0, 0.0, 0.25, 0.25, 0.5, 1.0, 1.0, 3.0, 4.0)
_NAMES = ["READY", "ALIVE", "OPENED", "MESSAGE", "ENDED", "REJECTED", "BANNED", "REOPENED", "REPLACE", "RESTING"]
KINDS = {getattr(p, name): name for name in _NAMES}
# Lower than by default, so that few connections meet them.
_LIMITS: dict[str, tuple[float, ...]] = {
    "backlog": (4, 4096),
    "ban_seconds": (2.0, 2.0, 5.0, 9.0),
    "burst": (3.0, 6.0, 300.0),
    "bytes_by_owner": (100.0, 4e6),
    "connections": (16, 64, 2048),
    "connections_by_cgroup": (3, 8, 1024),
    "connections_by_user": (3, 8, 1536),
    "connects": (1.0, 20.0),
    "hello_seconds": (2.0, 10.0),
    "message_bytes": (64, 16384),
    "messages_by_owner": (0.125, 0.125, 1.0, 2.0),
    "rate": (1.0, 10.0),
}


@dataclass
class _Process:
    pid: int
    uid: int
    cgroup: str  # the text of its file
    alive: bool | None  # as its pidfd shows, None before Linux 6.5
    start: int


@dataclass
class _Daemon:
    """The daemon's end of the channel: it takes `room` more datagrams, and sends commands."""

    show: Callable[[str, object], None]
    room: int = 1000
    errors: int = 0
    commands: list[bytes] = field(default_factory=list)
    event: int = field(default_factory=lambda: os.eventfd(0))

    def fileno(self) -> int:
        return self.event

    def setblocking(self, flag: bool) -> None: ...

    def command(self, kind: int, number: int, body: bytes = b"") -> None:
        self.commands.append(p.HEADER.pack(kind, number) + body)
        os.eventfd_write(self.event, 1)

    def recv(self, _: int) -> bytes:
        if not self.commands:
            raise BlockingIOError
        os.eventfd_read(self.event)
        if len(self.commands) > 1:
            os.eventfd_write(self.event, 1)
        return self.commands.pop(0)

    def sendmsg(self, data: list[bytes], rights: list[tuple[int, int, bytes]], _: int) -> None:
        if not self.room:
            raise BlockingIOError
        if rights and self.errors:
            self.errors -= 1
            raise OSError(errno.ETOOMANYREFS, "")
        self.room -= 1
        kind, number = p.HEADER.unpack_from(data[0])
        self.show(KINDS[kind], (number, data[0][p.HEADER.size :], [len(each[2]) for each in rights]))


class _Crowd:
    """A receiver and its clients."""

    def __init__(self, dice: random.Random, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.dice, self.folder, self.now = dice, folder, 1000.0
        self.shown: list[tuple[str, str]] = []
        self.daemon = _Daemon(self.show)
        self.connected: dict[bytes, _Process] = {}  # by the name of the socket
        self.messages: Counter[bytes] = Counter()
        self.admitted: _Process
        self.clients: list[socket.socket] = []
        self.threads: list[tuple[Callable[..., None], Any]] = []
        self.prompt = True  # whether closes end soon
        self.spare = os.open(os.devnull, os.O_RDONLY)
        groups = ("0::/a\n", "0::/b\n", "0::/user.slice/user-5.slice/x\n", "0::/\n", "1:cpu:/c\n0::/\n")
        self.processes = [
            _Process(
                dice.choice((0, number + 2, number + 2, number + 2)),
                dice.choice((5, 6, 7)),
                dice.choice(groups),
                dice.choice((None, None, True, True, True, False)),
                0,
            )
            for number in range(dice.choice((1, 4, 9)))
        ]
        self._patch(patch)
        drawn = {
            name: dice.choice(values)
            for name, values in _LIMITS.items()
            if name == "ban_seconds" or dice.random() < 0.5
        }
        self.file = socketfile.SocketFile(str(folder / "s"), 0o666, 4096)
        if dice.random() < 0.3:
            self.file.socket.setblocking(True)
            self.file = socketfile.SocketFile(str(folder / "s"), 0o666, 4096, self.file.socket.detach())
        self.can_refuse = dice.random() < 0.7  # descriptors
        patch.setattr(self.file, "pass_descriptors", self._pass_descriptors)
        self.receiver = loop.Receiver(Channel(self.daemon), self.file, p.Options(**drawn))  # type: ignore[arg-type]  # a double

    def show(self, name: str, what: object) -> None:
        self.shown.append((name, f"{self.now:g} {what}"))

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(
            monotonic=lambda: self.now,
            clock_gettime=lambda _: self.now,
            CLOCK_BOOTTIME=0,
            sleep=self._sleep,
            process_time=lambda: 0.5,
        )
        for module in (closing, limits, loop, peer):
            patch.setattr(module, "time", clock)
        thread = SimpleNamespace(allocate_lock=contextlib.nullcontext, stack_size=int, start_new_thread=self._thread)
        patch.setattr(closing, "_thread", thread)
        patch.setattr(loop, "user", self._admit)
        patch.setattr(loop, "cgroup_at", lambda pid: "" if self.dice.random() < 0.2 else peer.cgroup_at(pid))
        patch.setattr(socketfile, "_socket", SimpleNamespace(**{**vars(_socket), "socket": self._listening}))
        patch.setattr(peer, "user", lambda _: (self.admitted.pid, self.admitted.uid))
        patch.setattr(peer, "_alive", lambda _: self.admitted.alive)
        patch.setattr(peer, "_read", self._read)
        patch.setattr(peer, "posix", SimpleNamespace(sysconf=lambda _: _TICKS, kill=self._kill))
        patch.setattr(loop, "pidfd", lambda _: os.dup(self.spare) if self.now % 1.0 else None)
        if self.dice.random() < 0.5:
            patch.setattr(limits, "_MIN_CONNECTS", self.dice.choice((2, 5)))
        if self.dice.random() < 0.2:
            patch.setattr(loop, "_MAX_REPORTED", 2)
        patch.setattr(loop, "close_may_block", socketfile.holds_messages)
        files = loop._SPARE_DESCRIPTORS + self.dice.choice((6, 40, 4096, 4096))
        patch.setattr(loop, "resource", SimpleNamespace(getrlimit=lambda _: (files, files), RLIMIT_NOFILE=0))

    def _pass_descriptors(self, *, allowed: bool) -> bool:
        self.show("descriptors", allowed)
        return self.can_refuse

    def _listening(self, *arguments: Any, **named: Any) -> _socket.socket:
        dice = self.dice

        class Listening(_socket.socket):
            def _accept(self) -> tuple[int, Any]:
                if dice.random() < 0.005:
                    raise OSError(errno.EMFILE, dice.choice(("Too many open files", "")))
                return super()._accept()  # type: ignore[misc, no-any-return]  # not in typeshed

        return Listening(*arguments, **named)

    def _sleep(self, seconds: float) -> None:
        self.show("sleeps", seconds)

    def _thread(self, work: Callable[..., None], arguments: Any) -> None:
        if self.dice.random() < 0.1:
            raise RuntimeError("can't start new thread")
        self.threads.append((work, arguments))

    def _admit(self, sock: _socket.socket) -> tuple[int, int]:
        self.admitted = self.connected[sock.getpeername()]
        return self.admitted.pid, self.admitted.uid

    def _read(self, path: str) -> bytes:
        number, name = path.split("/")[2:4]
        found = next((each for each in self.processes if each.pid == int(number)), None)
        if found is None or found.alive is False:
            raise FileNotFoundError(path)
        return found.cgroup.encode() if name == "cgroup" else b"1 (a) " + b"0 " * 19 + b"%d 0" % found.start

    def _kill(self, pid: int, number: int) -> None:
        self.show("signals", (pid, number))
        if pid % 2:
            raise OSError(errno.ESRCH if pid % 3 else errno.EPERM, "")

    def connect(self) -> None:
        if len(self.clients) >= _MOST_CLIENTS:
            return
        process = self.dice.choice(self.processes)
        process.start = int(_TICKS * self.dice.choice((0.0, self.now - 1.0, self.now - 0.25, self.now, self.now + 9.0)))
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.setblocking(False)
        name = b"\0crowd %d %d" % (os.getpid(), next(_NUMBERS))
        made.bind(name)
        try:
            made.connect(str(self.folder / "s"))
        except OSError as error:
            self.show("connect", errno.errorcode[error.errno or 0])
            made.close()
            return
        self.connected[name] = process
        self.clients.append(made)

    def send(self) -> None:
        if not self.clients:
            return
        client, dice = self.dice.choice(self.clients), self.dice
        name = client.getsockname()
        for _ in range(min(dice.choice((1, 1, 2, 6)), _MOST_MESSAGES - self.messages[name])):
            self.messages[name] += 1
            sent = [self.record(dice.choice((4096, 4096, 8192))) for _ in range(dice.choice((0, 0, 1, 2)))]
            sent += [os.dup(self.spare) for _ in range(dice.choice((0, 0, 0, 0, 0, 1, 20)))]
            with contextlib.suppress(OSError):  # its queue is full, or it was closed
                socket.send_fds(client, [b"m" * dice.choice((1, 20, 64, 65))], dice.sample(sent, len(sent)))
            for descriptor in sent:
                os.close(descriptor)

    def record(self, size: int) -> int:
        made = os.memfd_create("record", os.MFD_ALLOW_SEALING)
        os.truncate(made, size)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return made

    def leave(self) -> None:
        if self.clients:
            self.clients.pop(self.dice.randrange(len(self.clients))).close()

    def crowd(self) -> None:
        for _ in range(self.dice.choice((5, 5, 20, 300))):
            self.connect()

    def command(self) -> None:
        number, process = self.dice.randint(1, 9), self.dice.choice(self.processes)
        kind = self.dice.choice((p.CLOSE, p.ASK, p.ASK, p.ASK, p.BAN))
        cgroup = peer.cgroup_of(process.cgroup).encode()
        seconds = self.dice.choice((0.25, 1.0, 3.0))
        self.daemon.command(kind, number, p.BAN_BODY.pack(process.uid, seconds) + cgroup if kind == p.BAN else b"")

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            posix.unlink(str(self.folder / "s"))

    def read(self) -> None:
        self.daemon.room = self.dice.choice((0, 1, 3, 1000, 1000, 1000))
        self.daemon.errors = self.dice.choice((0, 0, 1))

    def close(self) -> None:
        """Let the closes that block end."""
        self.prompt = self.dice.random() < 0.9
        for work, arguments in [self.threads.pop(0) for _ in range(self.dice.randint(0, len(self.threads)))]:
            work(*arguments)

    def turn(self) -> None:
        self.receiver.turn(0)
        if self.prompt:
            self.close()
        for number, client in enumerate(list(self.clients)):
            with contextlib.suppress(BlockingIOError):
                try:
                    found = client.recv(9)
                except ConnectionResetError:
                    found = b"reset"
                self.show("clients", (number, found))
                if found != b"?":
                    self.clients.remove(client)
                    client.close()
        closer = self.receiver._closer
        self.show("closes", (closer.total, len(closer._waiting), len(closer._running)))
        self.show("waits", self.receiver.wait())

    def run(self) -> None:
        acts = (self.send, self.connect, self.leave, self.command, self.read, self.close, self.crowd)
        chances = [30.0, 20.0, *(self.dice.choice((1.0, 3.0)) for _ in range(4)), self.dice.choice((0.0, 0.2, 2.0))]
        steps = self.dice.choice((_STEPS, _STEPS[:5]))  # the second: there is more to read than may be read
        for _ in range(_EVENTS):
            (self.remove if self.dice.random() < 0.005 else self.dice.choices(acts, chances)[0])()
            self.now += self.dice.choice(steps)
            self.turn()
        self.receiver.shut()
        self.daemon.room = 1000
        self.turn()


def _shown(seed: int) -> Iterator[tuple[str, str]]:
    before = os.open(".", os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, before)
        stack.callback(os.fchdir, before)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        crowd = _Crowd(random.Random(seed), folder, stack.enter_context(pytest.MonkeyPatch.context()))
        crowd.run()
        for work, arguments in crowd.threads:
            work(*arguments)
        for client in crowd.clients:
            client.close()
        for each in crowd.receiver._peers.values():
            each.sock.close()
        crowd.file.socket.close()
        os.close(crowd.spare)
        os.close(crowd.daemon.event)
    yield from crowd.shown


RECORD = Record("drawn_crowds", _shown, 16)
