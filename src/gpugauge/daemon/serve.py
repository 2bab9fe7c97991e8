"""`gpugauge serve`: settings, then the daemon, then the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpugauge.daemon import app, logs
from gpugauge.daemon.selection import SelectionError
from gpugauge.sessions.listener import SessionsError
from gpugauge.settings.kinds import ConfigError, ReaderEnded
from gpugauge.settings.model import Settings
from gpugauge.web.listen import ListenError


def serve(read: Callable[[], Settings]) -> int:
    """Run until told to stop, with the settings that `read` returns, now and at each reload; it raises ConfigError.
    Return the exit code, and say on standard error what cannot be used.
    """
    try:
        settings = read()
        logs.setup(settings.log.level, settings.log.format)
        return app.run(settings, read)
    except ReaderEnded as error:
        return error.status if error.explained else _failed(1, error)
    except (ConfigError, SelectionError) as error:
        return _failed(2, error)
    except (ListenError, SessionsError) as error:
        return _failed(1, error)


def _failed(code: int, reason: Exception) -> int:
    sys.stderr.write(f"gpugauge: {reason}\n")
    return code
