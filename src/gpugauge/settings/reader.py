"""A child process that reads the settings: click, YAML and pydantic take 12 MB. This module imports little."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpugauge import __version__
from gpugauge.base import isolated

if TYPE_CHECKING:
    from gpugauge.settings.model import Settings


# A read takes 0.3 s of CPU time, on a busy machine some seconds. Longer is a failure, as of a network file system.
START_SECONDS, RELOAD_SECONDS = 30.0, 10.0


class SettingsReader:
    """Reads the settings of a command line, its environment and its file. Without `known`, the settings that the first
    read returns, a child starts at once and works beside the caller. A child ends with this process, however that ends.
    """

    def __init__(self, arguments: Sequence[str], known: Settings | None = None) -> None:
        self._arguments = arguments
        self._child = None if known else _Child(arguments)
        self._first = known or self._child

    def read(self) -> Settings:
        """Return the current settings. Raises ConfigError, and ReaderEnded after a wrong flag or `--help`."""
        first, self._first = self._first, None
        if first:
            return first.settings(START_SECONDS) if isinstance(first, _Child) else first
        if self._child and not self._child.ended():
            raise _timeout("an earlier attempt still waits for the file")
        self._child = _Child(self._arguments)
        return self._child.settings(RELOAD_SECONDS)


class _Child:
    """A child process that reads the settings once. It inherits standard input, output and error."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._channel, child_end = socket.socketpair()
        folder = _current_folder()
        try:
            with child_end:
                fds = [child_end.fileno(), folder]
                self._process = subprocess.Popen(
                    isolated.command("gpugauge.cli.settings_child", *map(str, fds), *arguments),
                    pass_fds=fds,
                    cwd=isolated.FOLDER,
                    env=isolated.environment(dict(os.environ)),
                )
        finally:
            os.close(folder)

    def ended(self) -> bool:
        """Return whether the process has ended. SIGKILL has no effect on one that waits for a network file system."""
        return self._process.poll() is not None

    def settings(self, seconds: float) -> Settings:
        """Return the settings, after at most `seconds`. Raises ConfigError or ReaderEnded."""
        import pickle  # noqa: PLC0415  (these imports run beside the child, not before it)

        from gpugauge.settings.kinds import ConfigError, ReaderEnded  # noqa: PLC0415  (the same)
        from gpugauge.settings.model import Settings  # noqa: PLC0415  (the same)

        answer = self._answer(seconds)
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

    def _answer(self, seconds: float) -> bytes:
        """Return what the process sends until it ends. Raises ConfigError after `seconds`."""
        self._channel.settimeout(seconds)
        try:
            with self._channel, self._channel.makefile("rb") as answer:
                return answer.read()
        except TimeoutError:
            self._process.kill()
            raise _timeout(f"no answer after {seconds:g} s") from None


def _current_folder() -> int:
    """Return a descriptor of the current folder, or of the root where this user may not enter it, as after sudo."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(".", flags)
    except OSError:
        return os.open("/", flags)


def _timeout(reason: str) -> Exception:
    from gpugauge.settings.kinds import ConfigError  # noqa: PLC0415  (the same)

    return ConfigError(
        f"the settings cannot be read: {reason}; is the settings file on a file system that does not respond?"
    )
