"""Correct training processes beside hostile clients: `python -m qa.torture.honest SOCKET [NEWCOMERS]`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from gpugauge.hook.client import Client
from gpugauge.wire import messages as wire

SESSION, STEPS = "a" * 32, 1234
FIRST_NEWCOMER = 10_000  # steps of the first newcomer; the next one has one more
_NEWCOMERS = 20
_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Report the same number of steps every half second. With a file NEWCOMERS, another process begins to report each
    second, and a line of the file has its steps and the monotonic time.
    """
    path, *newcomers = sys.argv[1:]
    if newcomers and os.fork() == 0:
        _begin_newcomers(path, Path(newcomers[0]))
    report(path, SESSION, STEPS)


def report(path: str, session: str, steps: int) -> None:
    """Report as the hook does, without end."""
    hook, sequence = Client([path]), 1
    while True:
        now = time.perf_counter_ns()
        if hook.connect(now, lambda: (wire.encode(wire.Hello(session, 1, os.getpid())), None)):
            sequence += 1
            hook.send(now, wire.encode(wire.Snap(session, sequence, steps=wire.Progress(steps, 12.0))))
        time.sleep(0.5)


def _begin_newcomers(path: str, file: Path) -> None:
    """Fork the newcomers. They end with this process, and this one with its parent."""
    end_with_parent()
    for steps in range(FIRST_NEWCOMER, FIRST_NEWCOMER + _NEWCOMERS):
        if os.fork() == 0:
            end_with_parent()
            with file.open("a") as lines:
                lines.write(f"{steps} {time.monotonic()}\n")
            report(path, os.urandom(16).hex(), steps)
        time.sleep(1)
    signal.pause()


def end_with_parent() -> None:
    """Have this process killed when its parent ends."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
