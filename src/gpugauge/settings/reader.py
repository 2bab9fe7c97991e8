"""A child process that reads the settings, `python -m gpugauge.cli.settings_child`: click, YAML and pydantic take 12 MB
that the daemon would otherwise hold as long as it runs. This module imports little, so that the child starts at once.
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
    """Reads the settings of a command line, its environment and its file. The first child starts at once and works
    beside the caller. A child ends with this process, however that ends.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._started: _Child | None = _Child(arguments)

    def read(self) -> Settings:
        """Return the current settings. Raises ConfigError, and ReaderEnded after a wrong flag or `--help`."""
        child, self._started = self._started or _Child(self._arguments), None
        return child.settings()


class _Child:
    """A child process that reads the settings once. It inherits standard input, output and error."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._channel, child_end = socket.socketpair()
        with child_end:
            fd = child_end.fileno()
            # A yaml.py in the current folder must not be imported (Python 3.11 and newer).
            environment = {**os.environ, "PYTHONSAFEPATH": "1"}
            command = [sys.executable, "-m", "gpugauge.cli.settings_child", str(fd), *arguments]
            self._process = subprocess.Popen(command, pass_fds=[fd], env=environment)

    def settings(self) -> Settings:
        import pickle  # noqa: PLC0415  (these imports run beside the child, not before it)

        from gpugauge.settings.kinds import ConfigError, ReaderEnded  # noqa: PLC0415  (the same)
        from gpugauge.settings.model import Settings  # noqa: PLC0415  (the same)

        with self._channel, self._channel.makefile("rb") as stream:
            answer = stream.read()
        status = self._process.wait()
        if status or not answer:
            raise ReaderEnded(status)
        version, content = pickle.loads(answer)  # noqa: S301  (from our own child)
        if version != __version__:
            raise ConfigError(f"gpugauge {version} is installed now and {__version__} runs: it needs a restart")
        settings = pickle.loads(content)  # noqa: S301  (the same)
        if isinstance(settings, ConfigError):
            raise settings
        assert isinstance(settings, Settings)
        return settings
