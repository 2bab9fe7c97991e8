"""A correct training process beside hostile clients: `python -m bench.torture.honest SOCKET`."""

from __future__ import annotations

import os
import socket
import sys
import time

from gpugauge.wire import messages as wire

SESSION, STEPS = "a" * 32, 1234


def main() -> None:
    """Report the same number of steps every half second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
        hook.connect(sys.argv[1])
        hook.send(wire.encode(wire.Hello(SESSION, 1, os.getpid())))
        sequence = 1
        while True:
            sequence += 1
            hook.send(wire.encode(wire.Snap(SESSION, sequence, steps=wire.Progress(STEPS, 12.0))))
            time.sleep(0.5)


if __name__ == "__main__":
    main()
