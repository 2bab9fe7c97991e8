"""Logging: one line per event on standard error, logfmt or JSON, safe against whatever text comes from outside.

Use: `log.info("worker restarted", extra=fields(device=uuid, seconds=1.5))`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal, TextIO

from gpugauge.logline import fields

# Unquoted in logfmt: what needs no care in a shell, a terminal or a parser.
_BARE = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_MAX_TEXT = 4096


def setup(level: str = "info", format: Literal["logfmt", "json"] = "logfmt", stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (standard error) in one format; may be called again after a reload."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _LogfmtFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A port scan must not fill the log: tornado tells of every malformed request at info.
    logging.getLogger("tornado").setLevel(max(root.level, logging.WARNING))
    # … and of every TLS handshake that fails at warning.
    handshakes = logging.DEBUG if root.level <= logging.DEBUG else logging.ERROR
    logging.getLogger("tornado.general").setLevel(handshakes)


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # takes no type at run time before Python 3.11


class _Handler(_StreamHandler):
    """Writes a line if the other end takes it at once: a reader that stands still (a stopped journal, a full pipe) must
    not hold up whoever has something to say. What it does not take is counted, and told when it reads again.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._dropped = 0
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError, ValueError):  # memory, which always takes it
            self._descriptor = stream.fileno()
            self._poll = select.poll()
            self._poll.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if self._poll is None:
            super().emit(record)
            return
        if self._dropped and self._poll.poll(0):
            dropped, self._dropped = self._dropped, 0
            told = {"name": __name__, "levelname": "WARNING", "msg": "lines of this log were dropped: nobody took them"}
            self._write(logging.makeLogRecord(told | fields(lines=dropped)))
        self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        assert self._poll
        try:
            data = (self.format(record) + "\n").encode()
            for start in range(0, len(data), select.PIPE_BUF):  # what a pipe that is ready takes without waiting
                if not self._poll.poll(0):
                    self._dropped += 1
                    return
                os.write(self._descriptor, data[start : start + select.PIPE_BUF])
        except (OSError, MemoryError):  # a full disk, a reader that is gone
            self._dropped += 1


class _Formatter(logging.Formatter):
    """Collects a record's fields; subclasses write them as one line."""

    def record_fields(self, record: logging.LogRecord) -> dict[str, object]:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("gpugauge."),
            "msg": record.getMessage()[:_MAX_TEXT],
        }
        for name, value in getattr(record, "fields", {}).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return line


class _LogfmtFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_logfmt(value)}" for name, value in self.record_fields(record).items())


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values = {name: _plain(value) for name, value in self.record_fields(record).items()}
        return json.dumps(values)


def _plain(value: object) -> object:
    """Keep what JSON has, and write out the rest."""
    if isinstance(value, float) and value - value != 0:  # infinity or not a number, which JSON does not have
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)[:_MAX_TEXT]


def _logfmt(value: object) -> str:
    """Quote everything but plain words; ASCII only, so that no control or direction character reaches a terminal."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
