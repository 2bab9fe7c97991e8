"""The child of `settings.reader`: `FD FOLDER serve [FLAGS]` sends the settings over the socket FD; FOLDER is a
descriptor of the daemon's current one. After a wrong flag or `--help` it prints a text and sends nothing.
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
    """Read the settings once and end the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a terminal sends it to the daemon, too
    channel = socket.socket(fileno=int(sys.argv.pop(1)))
    folder = int(sys.argv.pop(1))
    os.fchdir(folder)
    os.close(folder)
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()

    def send(read: Callable[[], Settings]) -> NoReturn:
        try:
            result: Settings | ConfigError = read()
        except ConfigError as error:
            result = error
        channel.sendall(pickle.dumps((__version__, pickle.dumps(result))))
        os._exit(0)  # at once: the daemon waits, and there is nothing to clean up

    cli.main(prog_name="gpugauge", obj=send)


def _end_with(channel: socket.socket) -> None:
    """End with the daemon: a settings file that is a pipe without a writer would block this process for ever."""
    channel.recv(1)
    os._exit(1)
