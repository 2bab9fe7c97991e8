"""Fields of log lines, `log.info("…", extra=fields(device=uuid))`, and conditions, logged as they begin and end."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from typing import Any


def fields(**values: object) -> dict[str, Any]:
    """Return the `extra` argument of a logging call that adds the values to the line as fields."""
    return {"fields": values}


class Occasions:
    """Lines about many things, such as users: one for each in `seconds`, and at most `limit` for all of them."""

    def __init__(self, seconds: float, limit: int) -> None:
        self._seconds, self._limit = seconds, limit
        self._until: dict[Hashable, float] = {}  # oldest first, monotonic time

    def allows(self, subject: Hashable) -> bool:
        """Return whether a line about this is to be logged now."""
        now = time.monotonic()
        while self._until and next(iter(self._until.values())) <= now:
            del self._until[next(iter(self._until))]
        if subject in self._until or len(self._until) >= self._limit:
            return False
        self._until[subject] = now + self._seconds
        return True


class Condition:
    """A failure that may last: logged when it starts, changes its sentence, and ends. What varies is a field."""

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
