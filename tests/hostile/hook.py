"""Draws sequences of messages and behaviours of connections at the hook's socket, for a limited time:
`python -m tests.hostile.hook SECONDS [SEED]`. After each burst, an honest session must still report.

The truth is measured at the socket only: the honest client counts its own steps, and what the listener shows must be
this count. A burst runs in a process of another user (as root), with everything that a user without rights can do.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpugauge.sessions.listener import Sessions
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record

_LATE_SECONDS = 5.0
_BURST_SECONDS = 2.0
_HELD = 8  # attackers that keep what they have opened
_UID = 12340  # the first of the hostile users


class Honest:
    """A correct training. It connects again like the hook, and knows its own count."""

    def __init__(self, path: Path) -> None:
        self._path, self.session, self.steps = path, os.urandom(16).hex(), 0
        self._socket: socket.socket | None = None

    def step(self) -> None:
        self.steps += 1
        if not self._send():  # the connection has broken
            self._send()

    def _send(self) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                self._socket.connect(str(self._path))
                self._socket.send(wire.encode(wire.Hello(self.session, 0, os.getpid())))
            self._socket.send(wire.encode(wire.Snap(self.session, self.steps, steps=wire.Progress(self.steps))))
        except OSError as error:
            connected = isinstance(error, BlockingIOError) and self._connected()
            if not connected:
                self.close()
            return connected
        return True

    def _connected(self) -> bool:
        try:
            return self._socket is not None and bool(self._socket.getpeername())
        except OSError:  # the queue of the listening socket was full
            return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Attacker:
    """One burst, drawn from a seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._draw = path, random.Random(seed)
        self._open: list[socket.socket] = []
        self._keep: list[int | socket.socket] = []

    def run(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        acts: list[Callable[[], None]] = [
            self._connect,
            self._connect,
            self._crowd,
            self._message,
            self._message,
            self._message,
            self._flood,
            self._hand_over,
            self._hand_over,
            self._close,
            self._half_close,
            self._give_away,
        ]
        weights = [self._draw.random() ** 2 for _ in acts]
        deadline = time.monotonic() + _BURST_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError):
                self._draw.choices(acts, weights)[0]()
        if self._draw.random() < 0.7:
            time.sleep(60)  # holds what it has opened, until it is killed

    def _connect(self) -> None:
        hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        hook.connect(str(self._path))
        self._open.append(hook)
        if self._draw.random() < 0.7:
            hook.send(wire.encode(wire.Hello(self._session(), 0, self._draw.choice((1, os.getpid(), 2**31)))))

    def _crowd(self) -> None:
        for _ in range(self._draw.choice((10, 100, 1000))):
            self._connect()

    def _message(self) -> None:
        self._draw.choice(self._open).send(self._datagram())

    def _flood(self) -> None:
        hook, data = self._draw.choice(self._open), self._datagram()
        for _ in range(1000):
            hook.send(data)

    def _close(self) -> None:
        self._open.pop(self._draw.randrange(len(self._open))).close()

    def _half_close(self) -> None:
        self._draw.choice(self._open).shutdown(self._draw.choice((socket.SHUT_RD, socket.SHUT_WR)))

    def _give_away(self) -> None:
        """Leave a connection to a child whose parent has ended, or end as its owner."""
        hook = self._draw.choice(self._open)
        if os.fork() == 0:
            hook.send(self._datagram())
            time.sleep(self._draw.random())
            os._exit(0)

    def _hand_over(self) -> None:
        hook = self._draw.choice(self._open)
        if self._draw.random() < 0.7:
            self._connect()
            hook = self._open[-1]
        descriptors = [self._descriptor() for _ in range(self._draw.choice((1, 1, 2, 20, 253)))]
        try:
            socket.send_fds(hook, [self._datagram()], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _descriptor(self) -> int:
        kind = self._draw.choice(("lingering", "pipe", "null", "folder", "socket", "record", "hook", "loose", "path"))
        if kind == "lingering":
            return _lingering(self._keep)
        if kind == "pipe":
            reading, writing = os.pipe()
            self._keep.append(reading)
            return writing
        if kind == "socket":
            here, there = socket.socketpair()
            self._keep.append(here)
            return there.detach()
        if kind == "hook":
            return os.dup(self._draw.choice(self._open).fileno())
        if kind in {"record", "loose"}:
            made = os.memfd_create("record", os.MFD_ALLOW_SEALING)
            os.write(made, self._draw.randbytes(wire_record.RECORD_BYTES))
            if kind == "record":
                fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            return made
        return os.open({"null": "/dev/null", "folder": "/", "path": "/"}[kind], os.O_PATH if kind == "path" else 0)

    def _session(self) -> str:
        return self._draw.choice(("a" * 32, f"{self._draw.randrange(2000):032}"))

    def _datagram(self) -> bytes:
        kind = self._draw.randrange(6)
        if kind == 0:
            return self._draw.randbytes(self._draw.choice((1, 100, 16_000, 60_000)))
        if kind == 1:
            return wire.encode(wire.Hello(self._session(), 0))
        if kind == 2:
            return wire.encode(wire.Bye(self._session(), 9, self._draw.choice(("finished", "x"))))
        entries = self._draw.randrange(wire.MAX_ENTRIES + 2)
        parameters = tuple(wire.Parameters(f"d{i}", f"t{self._draw.random()}", 1, 1, 1) for i in range(entries))
        devices = tuple(wire.Device(i, f"GPU-{self._draw.random()}", 1, 1) for i in range(self._draw.randrange(18)))
        snap = wire.Snap(self._session(), 2, parameters=parameters, devices=devices, steps=wire.Progress(1))
        data = wire.encode(snap)
        if kind == 3:
            fields = json.loads(data)
            fields[self._draw.choice(list(fields))] = self._draw.choice((None, -1, "x", [], {}, 1e300, 2**70))
            return json.dumps(fields).encode()
        return data


def _lingering(keep: list[int | socket.socket]) -> int:
    """Return a TCP socket whose close blocks for 20 seconds, while its peer is kept."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        keep.append(server.accept()[0])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(1 << 16))
    return client.detach()


def _attack(path: Path, seed: int, user: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        if os.geteuid() == 0:
            os.setresuid(user, user, user)
        Attacker(path, seed).run()
    finally:
        os._exit(0)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def hostile(seconds: float, seed: int) -> list[str]:
    """Run bursts; return a sentence for each one after which the honest session did not report in time."""
    failures, bursts = list[str](), 0
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        listener = Sessions(f"{folder}/hook.sock", linger_seconds=5.0)
        listener.start()
        honest, running = Honest(listener.path), list[int]()
        end, worst = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            bursts += 1
            seeds = [draw.randrange(1 << 30) for _ in range(draw.choice((1, 1, 3)))]
            children = [_attack(listener.path, s, _UID + bursts * 4 + i) for i, s in enumerate(seeds)]
            late = _latest(listener, honest)
            running += children
            while len(running) > _HELD:
                _kill(running.pop(0))
            worst = max(worst, late)
            if late > _LATE_SECONDS:
                failures.append(f"the honest session is {late:.1f} s late in the burst of the seeds {seeds}")
        honest.close()
        for child in running:
            _kill(child)
        began = time.monotonic()
        counters = listener.counters()
        listener.stop()
        print(f"{bursts} bursts, {worst:.2f} s late at most, stopped in {time.monotonic() - began:.2f} s, {counters}")
    return failures


def _latest(listener: Sessions, honest: Honest) -> float:
    """Step for the time of a burst, and return the longest time between a step and its value in the view."""
    worst, stepped = 0.0, dict[int, float]()
    end = time.monotonic() + _BURST_SECONDS
    while time.monotonic() < end or (stepped and time.monotonic() < end + _LATE_SECONDS + 1):
        if time.monotonic() < end:
            honest.step()
            stepped[honest.steps] = time.monotonic()
        time.sleep(0.2)
        shown = [
            s.snap.steps.count for s in listener.view() if s.hello.session == honest.session and s.snap and s.snap.steps
        ]
        for count in [count for count in stepped if shown and count <= shown[0]]:
            worst = max(worst, time.monotonic() - stepped.pop(count))
        if stepped and time.monotonic() >= end:
            honest.step()  # as the hook does: a value that was dropped comes with the next message
    return max([worst, *(time.monotonic() - at for at in stepped.values())])


if __name__ == "__main__":
    found = hostile(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30))
    print("\n".join(found) or "the honest session always reported")
    raise SystemExit(bool(found))
