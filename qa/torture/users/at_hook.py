"""Attacks at the hook's socket."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial

from gpugauge.wire import messages as wire
from qa.torture.users.fuse import closing_hangs, memory_hangs
from qa.torture.users.target import Attack, Target, child, connect, hello, session

_SESSIONS = 1024
_BUSY = 1000
_GONE = 1500  # more than may be connected in a cgroup
_USERS = 112  # seven receivers have so many threads that close
_RANGE, _PARTS = 65_536, 2  # users of a range, as /etc/subuid gives, and processes that are one of them after the other
_SUBUIDS = 100_000  # the first of the users that are the attacker's own, above all attackers
_LINGER_SECONDS = 3600
_PROVEN_SECONDS = 2.0  # a process that lives so long after its message is known to the daemon
_KEPT_SECONDS = 20.0  # for which the other end of a lingering connection stays


def _lingering() -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket with SO_LINGER and a full send queue, and its other end."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        client.connect(server.getsockname())
        silent, _ = server.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, _LINGER_SECONDS))
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(1 << 14))
    return client, silent


def _hand_over(target: Target, *, queued: bool) -> None:
    """Pass a lingering socket with the first message, or leave it in the queue of a connection that ends."""
    evil, silent = _lingering()
    hook = connect(target.hook)
    if queued:
        hook.send(b"nonsense")
    socket.send_fds(hook, [hello(session())], [evil.fileno()])
    evil.close()  # the last one that closes waits: this must be the daemon
    time.sleep(_PROVEN_SECONDS)
    with hook, silent:
        time.sleep(_KEPT_SECONDS)


def _lingering_descriptors(target: Target) -> None:
    for turn in itertools.count():
        child(partial(_hand_over, target, queued=turn % 2 == 1))
        time.sleep(0.25)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _fuse_descriptors(target: Target) -> Callable[[], object]:
    files, _ = closing_hangs(target.folder, target.uid, 40)

    def act() -> None:
        for descriptor in itertools.cycle(files):
            with contextlib.suppress(OSError):
                hook = connect(target.hook)
                socket.send_fds(hook, [hello(session())], [descriptor])
                time.sleep(0.1)
                hook.close()
            time.sleep(0.1)

    return act


def _fuse_of_many_users(target: Target) -> Callable[[], object]:
    """As _fuse_descriptors, by many users that a user namespace gives to one: each may block one thread."""
    (descriptor,), _ = closing_hangs(target.folder, target.uid, 1)

    def act() -> None:
        while True:
            with contextlib.suppress(OSError):
                hook = connect(target.hook)
                socket.send_fds(hook, [hello(session())], [descriptor])
                time.sleep(_PROVEN_SECONDS)
                hook.close()
            time.sleep(_PROVEN_SECONDS)

    for number in range(_USERS):
        child(act, _SUBUIDS + 1000 * target.uid + number)
    return partial(time.sleep, _LINGER_SECONDS)


def _held_memory(target: Target) -> Callable[[], object]:
    """A training that holds the lock of its memory, so that its environment, command line and maps cannot be read."""
    kept = list[socket.socket]()

    def report() -> None:
        kept.append(connect(target.hook))
        kept[0].send(hello(session()))

    memory_hangs(target.folder, target.uid, report)
    return partial(time.sleep, _LINGER_SECONDS)


def _sessions(target: Target, count: int) -> list[tuple[socket.socket, str]]:
    found = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            hook, name = connect(target.hook), session()
            hook.send(hello(name))
            hook.setblocking(False)
            found.append((hook, name))
    return found


def _maximal_snap(name: str, number: int) -> bytes:
    devices = tuple(wire.Device(i, f"GPU-{name[:8]}-{i}", 1, 2, 3, 4, 5, 6, 7, "H100", "9.0", 8, 9) for i in range(16))
    kinds = ("float32", "bfloat16", "float16")
    parameters = tuple(wire.Parameters(f"cuda:{i}", kind, 1, 2, 3) for i in range(16) for kind in kinds)
    steps = wire.Progress(number, float(number), None, (1,) * 8)
    return wire.encode(
        wire.Snap(name, number, steps=steps, parameters=parameters, devices=devices, optimizer_state=parameters)
    )


def _maximal_snapshots(target: Target) -> None:
    hooks = _sessions(target, _SESSIONS)
    for number in itertools.count(2):
        for hook, name in hooks:
            with contextlib.suppress(OSError):
                hook.send(_maximal_snap(name, number))
        time.sleep(0.5)


def _busy_clients(target: Target) -> None:
    """1,000 sessions report as fast as they can, and others connect and go all the time."""
    hooks = _sessions(target, _BUSY)
    for number in itertools.count(2):
        for hook, name in hooks:
            with contextlib.suppress(OSError):
                hook.send(wire.encode(wire.Snap(name, number, steps=wire.Progress(number))))
        for _ in range(50):
            with contextlib.suppress(OSError):
                connect(target.hook).close()


def _connections_of_many_users(target: Target) -> Callable[[], object]:
    """Connections that come and go, each of another user that a user namespace gives to one."""
    first = _SUBUIDS + 100_000 * target.uid

    def act(uids: range) -> None:
        for uid in itertools.cycle(uids):
            os.setresuid(-1, uid, -1)
            with contextlib.suppress(OSError), connect(target.hook) as hook:
                hook.send(b"x")
            os.setresuid(-1, 0, -1)

    for part in range(_PARTS):  # as root, which a user is in a namespace
        child(partial(act, range(first + part, first + _RANGE, _PARTS)))
    return partial(time.sleep, _LINGER_SECONDS)


def _all_connections(target: Target) -> None:
    """As many sessions as a cgroup may have."""
    hooks = _sessions(target, _SESSIONS)
    for number in itertools.count(2):
        for hook, name in hooks:
            with contextlib.suppress(OSError):
                hook.send(wire.encode(wire.Snap(name, number, steps=wire.Progress(number))))
        time.sleep(5)


def _gone_peers(target: Target) -> None:
    """Connections whose processes have ended before they are accepted, and that this process keeps."""
    kept = list[socket.socket]()
    for _ in _turns(_GONE, 20.0):
        hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                hook.connect(target.hook)
            os._exit(0)
        os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            hook.send(hello(session()))
        kept.append(hook)
        del kept[:-_GONE]


def _turns(at_once: int, rate: float) -> Iterator[int]:
    """Count without end: to `at_once` without a pause, and then at a rate a second."""
    for number in itertools.count():
        yield number
        if number >= at_once:
            time.sleep(1 / rate)


ATTACKS: dict[str, Attack] = {
    "FUSE descriptors": _fuse_descriptors,
    "FUSE descriptors of many users": _fuse_of_many_users,
    "connections of many users": _connections_of_many_users,
    "held memory": _held_memory,
    **{
        name: partial(partial, act)
        for name, act in (
            ("lingering descriptors", _lingering_descriptors),
            ("maximal snapshots", _maximal_snapshots),
            ("busy clients", _busy_clients),
            ("all connections", _all_connections),
            ("gone peers", _gone_peers),
        )
    },
}
