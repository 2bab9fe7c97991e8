"""State of the sources of attribution."""

from __future__ import annotations

import logging

from gpugauge.base.logline import Condition


class Source:
    """One source. `up` is None if it does not apply or was not read yet. A change is logged in one line."""

    def __init__(self, name: str, log: logging.Logger) -> None:
        self.name = name
        self.up: bool | None = None
        self._condition = Condition(log)

    def set_up(self) -> None:
        """Record that the source was read."""
        self.up = True
        self._condition.recovered(f"attribution by {self.name} works again")

    def set_down(self, sentence: str, **values: object) -> None:
        """Record that the source cannot be read. `sentence` contains the missing labels and the advice."""
        self.up = False
        self._condition.failing(sentence, **values)
