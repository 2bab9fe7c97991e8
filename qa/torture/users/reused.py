"""A pid that is used again, at the hook's socket: `python -m qa.torture.users.reused SOCKET RECEIVER`, as root.

A user connects with a process that ends. A training of another user gets its pid, before and after the connection is
accepted. Then the user reports over the connection in the name of that pid. Writing ns_last_pid stands for the many
processes that a user begins until the pid comes again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

from gpugauge.wire import messages as wire
from qa.torture import honest
from qa.torture.users.target import child, session

_UID = 1234
_ACCEPTED_SECONDS = 0.5
_TRIES = 200
FORGED, OTHER_STEPS = 666, 4321  # the steps of the user; of the second training
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def main() -> None:
    """Report correctly as two trainings, and wrongly over two connections, until this is killed."""
    path, receiver = sys.argv[1], int(sys.argv[2])
    os.kill(receiver, signal.SIGSTOP)
    try:
        first, pid = _connected(path, 0.0)
        _begin(pid, partial(honest.report, path, honest.SESSION, honest.STEPS))
    finally:
        os.kill(receiver, signal.SIGCONT)
    second, other = _connected(path, _ACCEPTED_SECONDS)
    _begin(other, partial(honest.report, path, session(), OTHER_STEPS))
    for hook, claimed in ((first, pid), (second, other)):
        name = session()
        hook.send(wire.encode(wire.Hello(name, 1, claimed)))
        hook.send(wire.encode(wire.Snap(name, 2, steps=wire.Progress(FORGED, 1.0))))
    print("begun", flush=True)
    signal.pause()


def _connected(path: str, seconds: float) -> tuple[socket.socket, int]:
    """Return a connection of a process that lives so long and has then ended, and its pid."""
    hook = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def act() -> None:
        hook.connect(path)
        time.sleep(seconds)

    pid = child(act, _UID)
    os.waitpid(pid, 0)
    return hook, pid


def _begin(pid: int, act: partial[None]) -> None:
    """Run `act` in a process with this pid."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            _LAST_PID.write_text(str(pid - 1))
        found = os.fork()
        if found == 0:
            if os.getpid() == pid:
                honest.end_with_parent()
                act()
            os._exit(0)
        if found == pid:
            return
        os.waitpid(found, 0)
    raise RuntimeError(f"no process got the pid {pid}")


if __name__ == "__main__":
    main()
