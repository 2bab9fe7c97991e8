"""Logging: one line per event on standard error, as logfmt or JSON. Text from outside is escaped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import sys
from datetime import datetime, timezone
from typing import Literal, TextIO

from gpugauge.base.logline import fields

# Values that logfmt leaves unquoted: nothing special to a shell, a terminal or a parser.
_UNQUOTED = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_MAX_TEXT_CHARACTERS = 4096


def setup(level: str = "info", format: Literal["logfmt", "json"] = "logfmt", stream: TextIO | None = None) -> None:
    """Write all log records to `stream`, by default standard error. May be called again after a reload."""
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_Formatter(as_json=format == "json"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # A port scan must not fill the log: tornado logs connections that end early at info,
    logging.getLogger("tornado").setLevel(max(root.level, logging.WARNING))
    # and every failed TLS handshake at warning.
    handshakes = logging.DEBUG if root.level <= logging.DEBUG else logging.ERROR
    logging.getLogger("tornado.general").setLevel(handshakes)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # not subscriptable before Python 3.11
    """Writes a line only if the stream takes it without blocking the thread; dropped lines are counted and reported."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._dropped = 0
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError, ValueError):  # io.StringIO has no descriptor and never blocks
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
            report = {"name": __name__, "levelname": "WARNING", "msg": "log lines dropped: the reader was blocked"}
            self._write(logging.makeLogRecord(report | fields(lines=dropped)))
        self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        assert self._poll
        try:
            data = (self.format(record) + "\n").encode()
            for start in range(0, len(data), select.PIPE_BUF):  # a pipe that polls writable accepts this much
                if not self._poll.poll(0):
                    self._dropped += 1
                    return
                os.write(self._descriptor, data[start : start + select.PIPE_BUF])
        except (OSError, MemoryError):  # a full disk, a closed pipe
            self._dropped += 1


class _Formatter(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        found: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("gpugauge."),
            "msg": record.getMessage()[:_MAX_TEXT_CHARACTERS],
        }
        for name, value in getattr(record, "fields", {}).items():
            found.setdefault(name, value)
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps({name: _json_value(value) for name, value in found.items()})
        return " ".join(f"{name}={_logfmt(value)}" for name, value in found.items())


def _json_value(value: object) -> object:
    if isinstance(value, float) and value - value != 0:  # infinity or NaN, which JSON does not have
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)[:_MAX_TEXT_CHARACTERS]


def _logfmt(value: object) -> str:
    """Quote all but plain words. The result is ASCII, so that no control or direction character reaches a terminal."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text)
