"""Hostile clients: programs of this machine at the hook's socket, and any client at the port."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record
from qa.torture.fault import Fault, Inject, Sign
from qa.torture.honest import SESSION as _HONEST
from qa.torture.honest import STEPS as _STEPS
from qa.torture.scrape import Scrape
from qa.torture.signs import every, rises
from qa.torture.subject import Setting, Subject

REJECTED = "gpugauge_hook_rejected_total"
_THREADS = 4
_SETTING = Setting(devices=2)


class Sockets(Protocol):
    """What a client needs: the path of the hook's socket, and the port."""

    @property
    def hook(self) -> str: ...
    @property
    def port(self) -> int: ...


Behaviour = Callable[[Sockets], None]


def _connect(path: str) -> socket.socket:
    hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hook.settimeout(5)
    hook.connect(path)
    return hook


def _session() -> str:
    return random.randbytes(16).hex()


def _snap(session: str, sequence: int, **fields: object) -> bytes:
    return wire.encode(wire.Snap(session, sequence, **fields))  # type: ignore[arg-type]  # wrong types are intended


@contextlib.contextmanager
def training(run: Subject, *arguments: str) -> Iterator[None]:
    """Run a correct training, in a process of its own, because its label `process` follows from its pid."""
    with subprocess.Popen([sys.executable, "-m", "qa.torture.honest", run.hook, *arguments]) as process:
        time.sleep(1.5)  # until its session is shown
        try:
            yield
        finally:
            process.terminate()


def _hostile_clients(behave: Behaviour, threads: int = _THREADS) -> Inject:
    """Return an injection that runs `behave` in several threads all the time, beside a correct training."""

    @contextlib.contextmanager
    def inject(run: Subject) -> Iterator[None]:
        stop = threading.Event()

        def client() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    behave(run)

        with training(run):
            clients = [threading.Thread(target=client, daemon=True) for _ in range(threads)]
            for thread in clients:
                thread.start()
            try:
                yield
            finally:
                stop.set()
                for thread in clients:
                    thread.join(10)

    return inject


def honest(_before: Scrape, scrape: Scrape, _run: Subject) -> bool:
    """Return whether the scrape shows the correct training exactly once."""
    return [value for _, value in scrape.of("torch_steps_total")].count(_STEPS) == 1


def _send(*messages: bytes) -> Behaviour:
    def behave(run: Sockets) -> None:
        with _connect(run.hook) as hook:
            for message in messages:
                hook.send(message)
            hook.recv(1)  # returns when the daemon closes the connection

    return behave


def _flood(run: Sockets) -> None:
    session = _session()
    with _connect(run.hook) as hook:
        hook.send(wire.encode(wire.Hello(session, 1)))
        for sequence in range(2, 100000):
            hook.send(_snap(session, sequence))


def _huge(run: Sockets) -> None:
    with _connect(run.hook) as hook:
        hook.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        hook.send(b'{"v": [1, 1], "kind": "hello", "session": "' + b"x" * 150_000)
        hook.recv(1)


def _garbage(run: Sockets) -> None:
    _send(random.randbytes(random.randrange(1, 2000)))(run)


def _nested(run: Sockets) -> None:
    _send(b'{"v":' + b"[" * 8000 + b"]" * 8000 + b"}")(run)


def _forged(run: Sockets) -> None:
    """Use the session of the correct training: in the hello, and in a snap after another hello."""
    _send(wire.encode(wire.Hello(_HONEST, 9, os.getpid())), _snap(_HONEST, 10, steps=wire.Progress(9, 1.0)))(run)
    session = _session()
    _send(wire.encode(wire.Hello(session, 1)), _snap(_HONEST, 10, steps=wire.Progress(9, 1.0)))(run)


def _lies(run: Sockets) -> None:
    """Send impossible pids, clocks and counts, also falling ones."""
    session = _session()
    with _connect(run.hook) as hook:
        hook.send(wire.encode(wire.Hello(session, 1, pid=1, pid_namespace=1, started=random.choice((-1.0, 1e18, 4e9)))))
        for sequence, count in ((2, 2**60), (3, 5), (1, 7)):
            steps = wire.Progress(count, random.choice((-5.0, 1e17)), last=random.choice((1e18, -1e9, 0.0)))
            devices = (wire.Device(0, uuid="GPU-0", allocated=2**62, allocated_peak=0, ooms=3),)
            hook.send(_snap(session, sequence, monotonic_ns=2**62, steps=steps, batches=steps, devices=devices))
        time.sleep(0.5)


def _descriptors(run: Sockets) -> None:
    """Send descriptors that are no sealed record: unsealed, of another size, sealed garbage, devices, silent pipes."""
    opened = [os.open("/dev/zero", os.O_RDONLY), os.open("/", os.O_RDONLY), os.open("/dev/full", os.O_RDWR), *os.pipe()]
    unsealed = os.memfd_create("record", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, wire_record.RECORD_BYTES)
    garbage = os.memfd_create("record", os.MFD_ALLOW_SEALING)
    os.write(garbage, random.randbytes(wire_record.RECORD_BYTES))
    fcntl.fcntl(garbage, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    opened += [unsealed, garbage]
    try:
        for descriptor in opened:
            with _connect(run.hook) as hook:
                socket.send_fds(hook, [wire.encode(wire.Hello(_session(), 1))], [descriptor])
                socket.send_fds(hook, [wire.encode(wire.Bye(_session(), 2, "finished"))], opened)
                os.ftruncate(unsealed, 0)
        time.sleep(0.5)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _silent(run: Sockets) -> None:
    hooks = [_connect(run.hook) for _ in range(100)]
    with contextlib.suppress(OSError):
        hooks[0].recv(1)
    time.sleep(7)  # longer than the daemon's time-out
    for hook in hooks:
        hook.close()


def _thousands(run: Sockets) -> None:
    hooks: list[socket.socket] = []
    try:
        while len(hooks) < 700:
            hooks.append(_connect(run.hook))
            hooks[-1].send(wire.encode(wire.Hello(_session(), 1)))
    finally:
        time.sleep(2)
        for hook in hooks:
            hook.close()


def _port_scan(run: Sockets) -> None:
    """Send bytes that are no request: TLS, garbage, endless headers, a missing body, half a line."""
    things = (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(500),
        random.randbytes(3000),
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000,
        b"POST /-/release HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"GET /me",
    )
    for thing in things:
        with socket.create_connection(("127.0.0.1", run.port), 1) as client:
            client.sendall(thing)
            if thing != things[-1]:
                with contextlib.suppress(TimeoutError):
                    client.recv(1000)


def _reason(name: str) -> Sign:
    return every(rises(REJECTED, reason=name), honest)


def _row(
    name: str,
    how: str,
    reason: str,
    behave: Behaviour,
    *,
    quick: bool = False,
    report_within: float = 10.0,
    lasts: float = 6.0,
) -> Fault:
    reported_by, sign = (f'`{REJECTED}{{reason="{reason}"}}`', _reason(reason)) if reason else ("", honest)
    return Fault(
        f"hook: {name}",
        how,
        reported_by,
        sign,
        _hostile_clients(behave),
        setting=_SETTING,
        during=honest,
        quick=quick,
        report_within=report_within,
        lasts=lasts,
    )


BEHAVIOURS: dict[str, Behaviour] = {
    "a flood": _flood,
    "huge messages": _huge,
    "garbage": _garbage,
    "nested JSON": _nested,
    "forged identities": _forged,
    "lies": _lies,
    "foreign descriptors": _descriptors,
    "silent connections": _silent,
    "thousands of connections": _thousands,
    "a scan": _port_scan,
}
FAULTS: tuple[Fault, ...] = (
    _row("a flood", "4 clients send as fast as they can, and come back", "rate", _flood, quick=True),
    _row("huge messages", "150 KB each", "oversized", _huge),
    _row("garbage", "random bytes", "foreign", _garbage),
    _row("nested JSON", "8,000 lists within each other", "foreign", _nested),
    _row("forged identities", "hello and figures in the name of another's session", "malformed", _forged, quick=True),
    _row("lies about pids, clocks and counts", "pid 1, times in 10¹⁸, counts that fall", "", _lies),
    _row("foreign descriptors", "devices, pipes, folders, pages unsealed, garbage", "", _descriptors),
    _row("silent connections", "400 that say nothing", "silent", _silent, report_within=20.0, lasts=14.0),
    _row("thousands of connections", "2,800 sessions, more than one user may have", "connections", _thousands),
    Fault(
        "port: a scan",
        "TLS, garbage, endless headers, bodies that never come; the log stays still",
        inject=_hostile_clients(_port_scan),
        finally_=lambda _before, _scrape, run: len(run.log()) < 2000,
        setting=_SETTING,
        quick=True,
    ),
)
