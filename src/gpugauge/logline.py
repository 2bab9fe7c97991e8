"""Fields of log lines, and conditions that are logged when they begin, change and end.

Use: `log.info("worker restarted", extra=fields(device=uuid, seconds=1.5))`.
"""

from __future__ import annotations

import logging
import time
from typing import Any


def fields(**values: object) -> dict[str, Any]:
    """Return the `extra` argument of a logging call that adds the values to the line as fields."""
    return {"fields": values}


class Condition:
    """A failure that may last: logged when it starts, when its sentence changes, and when it ends.

    The sentence states the problem and what to do. Values that vary between failures belong into the fields.
    """

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self._sentence: str | None = None
        self._since = 0.0
        self._failures = 0

    def failing(self, sentence: str, **values: object) -> None:
        """Record a failure."""
        self._failures += 1
        if self._sentence is None:
            self._since = time.monotonic()
        if sentence != self._sentence:
            self._sentence = sentence
            self._log.log(self._level, sentence, extra=fields(**values))

    def recovered(self, sentence: str = "recovered", **values: object) -> None:
        """Record a success; logged only after a failure."""
        if self._sentence is None:
            return
        seconds = round(time.monotonic() - self._since, 1)
        ended = fields(after=self._sentence, seconds=seconds, failures=self._failures, **values)
        self._sentence, self._failures = None, 0
        self._log.info(sentence, extra=ended)
