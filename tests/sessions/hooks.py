"""A hook whose part the test plays: its messages, its shared record, and a process of another user."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire
from gpugauge.wire import record as wire_record

KEEP_SIZE, PUNCH_HOLE = 1, 2  # fallocate(2)
fallocate = ctypes.CDLL(None).fallocate
fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

ONE = "1" * 32
TWO = "2" * 32
HONEST = "a" * 32


def hello(session: str = ONE, **facts: str) -> bytes:
    return wire.encode(wire.Hello(session, 0, pid=1, facts=facts))


def snap(steps: int, session: str = ONE) -> bytes:
    return wire.encode(wire.Snap(session, steps, steps=wire.Progress(steps)))


def record_of(phase: str, steps: int, since: int = 0) -> bytes:
    """Return the content of a record whose other counts are 4 batches and no time in a phase."""
    memory = bytearray(wire_record.RECORD_BYTES)
    wire_record.write_head(memory)
    spent = [0] * len(wire_record.PHASES)
    wire_record.write(memory, [1, wire_record.PHASES.index(phase), since, steps, 4, *spent, 1])
    return bytes(memory)


def written(descriptor: int, phase: str, steps: int, since: int = 0) -> None:
    os.pwrite(descriptor, record_of(phase, steps, since), 0)


def shared_record(seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, size: int = wire_record.RECORD_BYTES) -> int:
    """Return a memfd that shows the phase training since boot."""
    descriptor = os.memfd_create("record", os.MFD_ALLOW_SEALING)
    os.write(descriptor, record_of("training", 3))
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def allocated_behind_its_end(size: int) -> int:
    """Return a sealed record of the right size with more memory, which the last close of it has to free."""
    descriptor = shared_record(seals=0)
    assert fallocate(descriptor, KEEP_SIZE, 0, size) == 0
    assert os.fstat(descriptor).st_blocks * 512 >= size
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def opened_again(flags: int) -> int:
    """Return another descriptor of a sealed record, opened with `flags`."""
    descriptor = shared_record()
    again = os.open(f"/proc/self/fd/{descriptor}", flags)
    os.close(descriptor)
    return again


def open_links(word: str) -> int:
    """Return how many descriptors of this process have `word` in their link; another thread may close any meanwhile."""
    found = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            found += word in str(link.readlink())
    return found


def open_records() -> int:
    return open_links("memfd:record")


def steps_of(session: Session) -> int | None:
    return session.snap.steps.count if session.snap and session.snap.steps else None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


def ended(listener: Sessions, name: str) -> None:
    until(lambda: (name, False) in [(s.hello.session, s.connected) for s in listener.view()])


def closed_by_daemon(client: socket.socket) -> bool:
    try:
        return not client.recv(1)
    except ConnectionError:
        return True


@contextlib.contextmanager
def started(path: Path, inherited: socket.socket | None = None, **options: Any) -> Iterator[Sessions]:
    """Start a listener with its receiver, and stop it at the end."""
    listener = Sessions(str(path), **options)
    listener.start(inherited)
    try:
        yield listener
    finally:
        listener.stop()


def connect(listener: Sessions) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(5)
    try:
        client.connect(str(listener.path))
    except OSError:
        client.close()
        raise
    return client


def forked(act: Callable[[], object], uid: int = 0) -> int:
    """Run `act` in a child process, of another user if given; return its pid."""
    child = os.fork()
    if child:
        return child
    code = 1
    with contextlib.suppress(BaseException):
        if uid:
            os.setresuid(uid, uid, uid)
        act()
        code = 0
    os._exit(code)


def steps(listener: Sessions, session: str = HONEST) -> int | None:
    return next((steps_of(s) for s in listener.view() if s.hello.session == session and s.connected), None)


def reported(listener: Sessions, session: str, count: int) -> None:
    until(lambda: steps(listener, session) == count)


def zombie(code: int) -> int:
    """Return the pid of a process that has ended, and that nobody has waited for."""
    child = os.fork()
    if not child:
        os._exit(code)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child
