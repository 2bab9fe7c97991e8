"""The model FLOPs of the steps: floating-point operations of the model, forward and backward."""

from __future__ import annotations

from gpugauge.wire.messages import FLOP_SOURCES

STATED, COUNTED, PARAMETERS = FLOP_SOURCES


class ModelFlops:
    """Sums by source. Of the sources that are known, the first one in FLOP_SOURCES counts."""

    def __init__(self) -> None:
        self._per: dict[str, float] = {}  # by source: the FLOPs of a step, for PARAMETERS those of a token
        self.clear()

    def clear(self) -> None:
        """Start from zero, with what is known about the model kept: in a forked child."""
        self.sums: dict[str, float] = {}
        self._steps = self._tokens = 0  # that are counted

    @property
    def source(self) -> str | None:
        """The source that counts, None if none is known."""
        return next((source for source in FLOP_SOURCES if source in self._per), None)

    def know(self, source: str, per: float | None, steps: int, tokens: int | None) -> None:
        """Take the FLOPs of a step, or of a token; None if they are no longer known. What the program states holds from
        now on. The others hold for the steps before, too, if no source was known.
        """
        self.advance(steps, tokens)
        if per is None:
            self._per.pop(source, None)
        else:
            self._per[source] = per
        if source == STATED:
            self._steps, self._tokens = steps, tokens or 0

    def advance(self, steps: int, tokens: int | None) -> None:
        """Count the steps and tokens until now; `tokens` is None if they are not known."""
        source = self.source
        if source is None:
            return
        new = max(0, (tokens or 0) - self._tokens if source == PARAMETERS else steps - self._steps)
        if new:
            self.sums[source] = self.sums.get(source, 0.0) + self._per[source] * new
        self._steps, self._tokens = max(self._steps, steps), max(self._tokens, tokens or 0)
