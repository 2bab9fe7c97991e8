"""Acts at the hook's socket: messages, connections and descriptors (qa/hostile/__main__.py)."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.texts import NAMES, TEXTS

from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from qa.hostile.attack import Acts

_libc = ctypes.CDLL(None)
_KEEP_SIZE = 1  # fallocate(2)
_LARGE_BYTES = 256 << 20
_CLOSE_SECONDS = 0.05
_TICK_SECONDS = 2.0  # in which the daemon takes a snapshot


class Hook:
    """A client of the hook's socket that does everything that a user without rights can do."""

    def __init__(self, path: Path) -> None:
        self.draw = Random()
        self._path = path
        self._open: list[socket.socket] = []
        self._keep: list[int | socket.socket] = []

    def connect(self) -> None:
        self._connect()
        if self.draw.random() < 0.7:
            self._open[-1].send(wire.encode(wire.Hello(self._session(), 0, self.draw.choice((1, os.getpid(), 2**31)))))

    def _connect(self) -> None:
        hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        hook.connect(str(self._path))
        self._open.append(hook)

    def crowd(self) -> None:
        for _ in range(self.draw.choice((10, 100, 1000))):
            self.connect()

    def message(self) -> None:
        self.draw.choice(self._open).send(self._datagram())

    def flood(self) -> None:
        hook, data = self.draw.choice(self._open), self._datagram()
        for _ in range(1000):
            hook.send(data)

    def lie(self) -> None:
        """Report the largest numbers in two sessions of this process, one after the other: their sums are exported. The
        texts of their facts are what a check for digits may take for a number.
        """
        largest = self.draw.choice((1.7e308, 1e300, 2.0**62, 2**63 - 1))
        for number in range(2):
            self._connect()
            hook, name = self._open[-1], os.urandom(16).hex()
            hook.send(wire.encode(wire.Hello(name, 0, os.getpid(), started=time.time())))
            for count in range(1, 3):
                steps = wire.Progress(count, largest, time.time(), (count,) * wire.LOG2_BUCKETS)
                snap = wire.Snap(
                    name, count, steps=steps, batches=steps, samples=2**63 - 1, exposed_wait_seconds=largest
                )
                chosen = {name: self.draw.choice(TEXTS) for name in self.draw.sample(NAMES, 30)}
                facts = {name: text for name, text in chosen.items() if text}
                hook.send(wire.encode(replace(snap, facts=facts, waits=dict.fromkeys(wire_record.PHASES, largest))))
                time.sleep(_TICK_SECONDS)
            if not number:
                self._open.pop().close()

    def close(self) -> None:
        self._open.pop(self.draw.randrange(max(1, len(self._open)))).close()

    def half_close(self) -> None:
        self.draw.choice(self._open).shutdown(self.draw.choice((socket.SHUT_RD, socket.SHUT_WR)))

    def give_away(self) -> None:
        """Leave a connection to a child whose parent has ended, or end as its owner."""
        hook = self.draw.choice(self._open)
        if os.fork() == 0:
            try:
                hook.send(self._datagram())
                time.sleep(self.draw.random())
            finally:
                os._exit(0)

    def hand_over(self) -> None:
        hook = self.draw.choice(self._open)
        if self.draw.random() < 0.7:
            self.connect()
            hook = self._open[-1]
        descriptors = [self._descriptor() for _ in range(self.draw.choice((1, 1, 2, 20, 253)))]
        try:
            socket.send_fds(hook, [self._datagram()], descriptors)
        finally:
            # A lingering one that was not taken over blocks here; the alarm ends the wait.
            signal.signal(signal.SIGALRM, lambda *_: None)
            signal.setitimer(signal.ITIMER_REAL, _CLOSE_SECONDS, _CLOSE_SECONDS)
            for descriptor in descriptors:
                os.close(descriptor)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _descriptor(self) -> int:
        kinds = ("lingering", "pipe", "null", "folder", "socket", "record", "large", "hook", "loose", "path")
        kind = self.draw.choice(kinds)
        if kind == "lingering":
            return lingering(self._keep)
        if kind == "pipe":
            reading, writing = os.pipe()
            self._keep.append(reading)
            return writing
        if kind == "socket":
            here, there = socket.socketpair()
            self._keep.append(here)
            return there.detach()
        if kind == "hook":
            return os.dup(self.draw.choice(self._open).fileno())
        if kind in {"record", "large", "loose"}:
            made = os.memfd_create("record", os.MFD_ALLOW_SEALING)
            os.write(made, self.draw.randbytes(wire_record.RECORD_BYTES))
            if kind == "large":  # with memory behind its end
                _libc.fallocate(made, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(_LARGE_BYTES))
            if kind != "loose":
                fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            return made
        return os.open({"null": "/dev/null", "folder": "/", "path": "/"}[kind], os.O_PATH if kind == "path" else 0)

    def _session(self) -> str:
        return self.draw.choice(("a" * 32, f"{self.draw.randrange(2000):032}"))

    def _datagram(self) -> bytes:
        kind = self.draw.randrange(6)
        if kind == 0:
            return self.draw.randbytes(self.draw.choice((1, 100, 16_000, 60_000)))
        if kind == 1:
            return wire.encode(wire.Hello(self._session(), 0))
        if kind == 2:
            return wire.encode(wire.Bye(self._session(), 9, self.draw.choice(("finished", "x"))))
        entries = self.draw.randrange(wire.MAX_ENTRIES + 2)
        parameters = tuple(wire.Parameters(f"d{i}", f"t{self.draw.random()}", 1, 1, 1) for i in range(entries))
        devices = tuple(wire.Device(i, f"GPU-{self.draw.random()}", 1, 1) for i in range(self.draw.randrange(18)))
        snap = wire.Snap(self._session(), 2, parameters=parameters, devices=devices, steps=wire.Progress(1))
        data = wire.encode(snap)
        if kind == 3:
            fields = json.loads(data)
            fields[self.draw.choice(list(fields))] = self.draw.choice((None, -1, "x", [], {}, 1e300, 2**70))
            return json.dumps(fields).encode()
        return data


def lingering(keep: list[int | socket.socket]) -> int:
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


ACTS: Acts = {
    "connect": Hook.connect,
    "crowd": Hook.crowd,
    "message": Hook.message,
    "flood": Hook.flood,
    "lie": Hook.lie,
    "hand_over": Hook.hand_over,
    "close": Hook.close,
    "half_close": Hook.half_close,
    "give_away": Hook.give_away,
}
