"""The command `gpugauge serve`: read the settings, run the daemon, return the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpugauge.daemon import app, logs
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


def _failed(code: int, reason: Exception) -> int:
    sys.stderr.writelines(f"gpugauge: {sentence}\n" for sentence in str(reason).splitlines())
    return code
