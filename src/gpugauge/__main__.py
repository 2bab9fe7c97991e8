"""The entry point, `gpugauge` or `python -m gpugauge`. The daemon starts at once, without the libraries that read its
settings; every other command goes through the command line. `isolated` explains what this module may import.
"""

import os
import sys

from gpugauge.base import isolated


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    isolated.forget_current_folder()  # before the first import that it could shadow
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[1:])
    from gpugauge.cli import main as cli

    cli.main()


def _serve(arguments: list[str]) -> None:
    import signal

    from gpugauge.base import privileges

    _open_standard_streams()
    privileges.clear_ambient()  # no child inherits a capability of the service

    # Until the daemon installs its own handlers: pid 1 of a container ignores signals without a handler.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload is not needed: the settings are being read

    # What can work beside the imports of the daemon is started before them.
    from gpugauge.settings.plain import plain_settings
    from gpugauge.settings.reader import SettingsReader

    known = plain_settings(arguments[1:], os.environ)
    reader = SettingsReader(arguments, known)
    from gpugauge.driver.bus import worker_module
    from gpugauge.driver.client import Worker, ahead

    real = known and known.driver.mode != "off" and not known.simulate
    spawn = ahead(worker_module(known.path.sysfs), **known.path.options()) if known and real else Worker
    from gpugauge.daemon import serve as daemon

    sys.exit(daemon.serve(reader.read, spawn))


def _open_standard_streams() -> None:
    """Open those of the descriptors 0 to 2 that are closed: otherwise a socket would get the number of one of them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:  # the lowest number that is free
        pass
    os.close(descriptor)
    if sys.stderr is None:  # it was closed when the interpreter started
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  (stays open)


if __name__ == "__main__":
    main()
