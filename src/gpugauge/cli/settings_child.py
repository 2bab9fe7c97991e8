"""The child end of `settings.reader`. `python -m gpugauge.cli.settings_child FD serve [FLAGS]` reads the settings and
sends them to the daemon that started it. A wrong flag and `--help` end it with a text and nothing sent.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from gpugauge import __version__
from gpugauge.cli import main as cli
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings


def main() -> None:
    """Read once; ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # from a terminal it ends the daemon too
    channel = socket.socket(fileno=int(sys.argv.pop(1)))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()

    def send(read: Callable[[], Settings]) -> NoReturn:
        try:
            told: Settings | ConfigError = read()
        except ConfigError as error:
            told = error
        channel.sendall(pickle.dumps((__version__, pickle.dumps(told))))
        os._exit(0)  # the daemon waits for it, and there is nothing to take apart

    cli.main(prog_name="gpugauge", obj=send)


def _end_with(channel: socket.socket) -> None:
    """End when the daemon does, however it ends: a settings file may be a pipe into which nobody writes."""
    channel.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
