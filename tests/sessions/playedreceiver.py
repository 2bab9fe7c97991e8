"""A receiver whose part the test plays: no process, and each datagram is sent when the test wants it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpugauge.sessions import listener as listeners
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.receiver import protocol as p
from gpugauge.wire import messages as wire
from tests.sessions.hooks import started, until


class Played:
    """Stands in for the process of a receiver. `first` is what it sends when it starts."""

    made: list[Played]
    first: bytes | None = p.HEADER.pack(p.READY, 0)
    refused: OSError | None = None

    def __init__(self, command: list[str], *, pass_fds: list[int], **options: Any) -> None:
        if self.refused:
            raise self.refused
        self.command, self.options, self.passed = command, options, list(pass_fds)
        self.channel = socket.socket(fileno=os.dup(pass_fds[0]))
        self.pid = 4000 + len(self.made)
        self.ends_by_itself = True
        self.status: int | None = None
        self.ended: list[str] = []
        self.made.append(self)
        if self.first:
            self.channel.send(self.first)

    def send(self, kind: int, number: int = 0, body: bytes = b"", descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.channel, [p.HEADER.pack(kind, number) + body], list(descriptors))

    def open(self, number: int, uid: int = 1, pid: int = 0, start: int = 0, cgroup: str = "/c") -> None:
        """Report a connection. Its process, which `claimed` it, is never that of /proc."""
        self.send(p.OPENED, number, p.PEER.pack(pid, uid, start, 1.0, 0) + cgroup.encode())

    def begin(self, number: int, session: str, *descriptors: int, **identity: Any) -> None:
        """Report a connection and its first message."""
        self.open(number, **identity)
        self.message(number, wire.Hello(session, 0), *descriptors)

    def message(self, number: int, message: wire.Message, *descriptors: int) -> None:
        self.send(p.MESSAGE, number, wire.encode(message), descriptors)

    def reject(self, reason: str, uid: int, count: int, detail: str = "") -> None:
        self.send(p.REJECTED, 0, p.REFUSED.pack(uid, count) + f"{reason}\0{detail}".encode())

    def commands(self) -> list[tuple[int, int, bytes]]:
        """Return the commands that have arrived: kind, number, body."""
        found = []
        self.channel.setblocking(False)
        while True:
            try:
                data = self.channel.recv(p.MAX_DATAGRAM_BYTES)
            except (BlockingIOError, ConnectionError):
                break
            if not data:
                break
            found.append((*p.HEADER.unpack_from(data), data[p.HEADER.size :]))
        self.channel.setblocking(True)
        return found

    # --- subprocess.Popen ---

    def wait(self, timeout: float) -> int:
        self.ended.append(f"wait {timeout:g}")
        if not self.ends_by_itself and "kill" not in self.ended:
            raise subprocess.TimeoutExpired("receiver", timeout)
        return 0

    def kill(self) -> None:
        self.ended.append("kill")

    def poll(self) -> int | None:
        return self.status


def _close_all() -> None:
    for played in Played.made:
        played.channel.close()


@contextmanager
def playing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sessions]]:
    """Return a function that starts listeners whose receivers the test plays."""
    monkeypatch.setattr(Played, "made", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Played)
    monkeypatch.setattr(listeners, "SWEEP_INTERVAL_SECONDS", 0.01)
    with ExitStack() as running:
        running.callback(_close_all)

        def start(inherited: socket.socket | None = None, **options: Any) -> Sessions:
            return running.enter_context(started(folder / "hook.sock", inherited, **options))

        yield start


def settle(listener: Sessions, number: int) -> None:
    """Wait until the daemon has handled all that the receiver in use has sent before."""
    Played.made[-1].send(p.ALIVE, 0, p.STATE.pack(0, 0, number, 0.0))
    until(lambda: listener.counters().banned == number)


def ban(uid: int, seconds: float, cgroup: str) -> bytes:
    return struct.pack("=id", uid, seconds) + cgroup.encode()
