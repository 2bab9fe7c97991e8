"""The command `gpugauge serve`: read the settings, run the daemon, return the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpugauge.daemon import app, assembly, logs
from gpugauge.driver.client import Spawn, Worker
from gpugauge.sessions.listener import SessionsError
from gpugauge.settings.kinds import ConfigError, ReaderEnded
from gpugauge.settings.model import Settings
from gpugauge.web.listen import ListenError


def serve(read: Callable[[], Settings], spawn: Spawn = Worker) -> int:
    """Run the daemon until SIGTERM or SIGINT and return the exit code; `read` returns the settings at each reload."""
    try:
        settings = read()
        logs.setup(settings.log.level, settings.log.format)
        return app.run(settings, read, spawn)
    except ReaderEnded as error:
        return error.status if error.explained else _failed(1, error)
    except ConfigError as error:
        return _failed(2, error)
    except (ListenError, SessionsError) as error:
        return _failed(1, error)


def check(read: Callable[[], Settings]) -> int:
    """Print whether the daemon can start with the settings, with a sentence for each error; return the exit code."""
    try:
        found = assembly.check(read())
    except ConfigError as error:
        found = [error]
    if not found:
        sys.stdout.write("The settings are valid.\n")
    return _failed(2, *found) if found else 0


def _failed(code: int, *reasons: Exception) -> int:
    sentences = [sentence for reason in reasons for sentence in str(reason).splitlines()]
    sys.stderr.writelines(f"gpugauge: {sentence}\n" for sentence in sentences)
    return code
