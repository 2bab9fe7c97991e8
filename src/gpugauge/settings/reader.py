"""The settings, read by a child process, `python -m gpugauge.cli.settings_child`. click, YAML and pydantic take 12 MB
that the daemon would hold for all its life. Imports little, so that the child starts at once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpugauge import __version__

if TYPE_CHECKING:
    from gpugauge.settings.model import Settings


class SettingsReader:
    """Reads the settings of a command line, its environment and its file; the first time from now on, beside whatever
    the caller does. The child ends with this process, however that ends.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._begun: _Child | None = _Child(arguments)

    def read(self) -> Settings:
        """Return them as they are now. Raises ConfigError; ReaderEnded when a flag is wrong, or asked for help."""
        child, self._begun = self._begun or _Child(self._arguments), None
        return child.settings()


class _Child:
    """One reading, under way. Standard input, output and error are the daemon's own."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            # As for the program itself, a yaml.py in the current folder is none of ours (Python 3.11 and newer).
            environment = {**os.environ, "PYTHONSAFEPATH": "1"}
            command = [sys.executable, "-m", "gpugauge.cli.settings_child", str(fd), *arguments]
            self._process = subprocess.Popen(command, pass_fds=[fd], env=environment)

    def settings(self) -> Settings:
        import pickle  # noqa: PLC0415  (all three beside the child, not before it)

        from gpugauge.settings.kinds import ConfigError, ReaderEnded  # noqa: PLC0415  (likewise)
        from gpugauge.settings.model import Settings  # noqa: PLC0415  (likewise)

        with self._channel, self._channel.makefile("rb") as stream:
            answer = stream.read()
        status = self._process.wait()
        if status or not answer:
            raise ReaderEnded(status)
        version, told = pickle.loads(answer)  # noqa: S301  (from our own child)
        if version != __version__:
            raise ConfigError(f"gpugauge {version} is installed now and {__version__} runs: it needs a restart")
        settings = pickle.loads(told)  # noqa: S301  (the same)
        if isinstance(settings, ConfigError):
            raise settings
        assert isinstance(settings, Settings)
        return settings
