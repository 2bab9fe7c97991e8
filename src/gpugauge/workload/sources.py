"""Where attribution comes from, and whether each of these sources works."""

from __future__ import annotations

import logging

from gpugauge.logline import Condition


class Source:
    """One source: up, down, or None where it does not apply; a change is one line in the log."""

    def __init__(self, name: str, log: logging.Logger) -> None:
        self.name = name
        self.up: bool | None = None
        self._condition = Condition(log)

    def works(self) -> None:
        """Tell that it answered."""
        self.up = True
        self._condition.recovered(f"attribution by {self.name} works again")

    def fails(self, sentence: str, **values: object) -> None:
        """Tell that it did not; the sentence says which labels are missing and what to do."""
        self.up = False
        self._condition.failing(sentence, **values)

    def absent(self) -> None:
        """Tell that there is no such thing on this machine."""
        self.up = None
