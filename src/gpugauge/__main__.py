"""The program, `gpugauge` or `python -m gpugauge`: the daemon at once, so that it never holds the libraries with which
its settings are read; every other command by the command line.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command that the arguments name; ends the process."""
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[1:])
    from gpugauge.cli import main as cli

    cli.main()


def _serve(arguments: list[str]) -> None:
    from gpugauge.settings.reader import SettingsReader

    # Until the daemon takes them over. Pid 1 of a container does not end by a signal that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the settings are just being read
    reader = SettingsReader(arguments)  # works beside the imports
    from gpugauge.daemon import serve as daemon

    sys.exit(daemon.serve(reader.read))


if __name__ == "__main__":
    main()
