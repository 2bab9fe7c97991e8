"""The receiver process, seen from the daemon, which of strangers holds only sealed records and pidfds."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gpugauge
from gpugauge.sessions.receiver import protocol as p

START_SECONDS = 10.0  # until the receiver has opened the socket
_END_SECONDS = 1.0  # for an orderly end, and for one by SIGKILL
_MAX_DATAGRAMS = 500  # read at once
_CODE = "import sys; sys.path.append(sys.argv[1]); from gpugauge.sessions.receiver.main import main; main(sys.argv[2:])"

Datagram = tuple[int, int, bytes, list[int]]  # kind, number of the connection, body, descriptors


class Intake:
    """A running receiver. Raises OSError if it cannot be started or cannot open the socket."""

    def __init__(self, path: Path, options: p.Options, inherited: socket.socket | None) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ended = self.resting = False
        try:
            with theirs:
                fds = [sock.fileno() for sock in (theirs, inherited) if sock]
                arguments = [" ".join(map(str, fds)), str(path.absolute()), *options.words()]
                root = str(Path(gpugauge.__file__).parents[1])
                # In a session of its own, because Ctrl-C is for the daemon, which then ends the receiver.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _CODE, root, *arguments],
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError:
            self.channel.close()
            raise
        try:
            self._wait_until_ready()
        except OSError:
            self.end(graceful=False)
            raise
        self.received_at = time.monotonic()
        self.pid = self._process.pid

    def receive(self) -> Iterator[Datagram]:
        """Yield the datagrams that have arrived; the caller closes the descriptors. Sets `ended` with the receiver."""
        for _ in range(_MAX_DATAGRAMS):
            try:
                data, fds, _, _ = socket.recv_fds(self.channel, p.MAX_DATAGRAM_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self.ended = True
                return
            self.received_at = time.monotonic()
            kind, number = p.HEADER.unpack_from(data)
            if kind in (p.ALIVE, p.RESTING):
                self.resting = kind == p.RESTING
            yield kind, number, data[p.HEADER.size :], fds

    def command(self, kind: int, number: int, body: bytes = b"") -> None:
        """Send a command. One that finds no room is dropped: the receiver is then about to be replaced."""
        with contextlib.suppress(OSError):
            self.channel.send(p.HEADER.pack(kind, number) + body, socket.MSG_NOSIGNAL)

    def end(self, *, graceful: bool = True) -> None:
        """End the process. One that hangs inside the kernel stays; it holds nothing that a successor needs."""
        self.channel.close()
        if graceful:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
                return
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def reaped(self) -> bool:
        """Return whether the process has ended, and wait for it if it has."""
        return self._process.poll() is not None

    def _wait_until_ready(self) -> None:
        self.channel.settimeout(START_SECONDS)
        try:
            data = self.channel.recv(p.MAX_DATAGRAM_BYTES)
        except TimeoutError:
            raise OSError(0, f"the receiver did not start within {START_SECONDS:g} s") from None
        if not data:
            raise OSError(0, "the receiver ended")
        kind, _ = p.HEADER.unpack_from(data)
        if kind == p.FAILED:
            raise OSError(0, data[p.HEADER.size :].decode(errors="replace"))
        self.channel.setblocking(False)
