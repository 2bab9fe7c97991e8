"""The entry point, `gpugauge` or `python -m gpugauge`. The daemon starts at once, without the libraries that read its
settings; every other command goes through the command line.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[1:])
    from gpugauge.cli import main as cli

    cli.main()


def _serve(arguments: list[str]) -> None:
    from gpugauge.settings.reader import SettingsReader

    # Until the daemon installs its own handlers: pid 1 of a container ignores signals without a handler.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload is not needed: the settings are being read
    reader = SettingsReader(arguments)  # its child works beside the imports
    from gpugauge.daemon import serve as daemon

    sys.exit(daemon.serve(reader.read))


if __name__ == "__main__":
    main()
