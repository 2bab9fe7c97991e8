"""The work in the batches of the training: samples, tokens, and the model FLOPs that the program states."""

from __future__ import annotations

from typing import Optional, Tuple, Union

# Of a batch: the number of samples, or of samples and tokens; None for what cannot be known.
Size = Union[int, Tuple[Optional[int], Optional[int]], None]


class Work:
    """Sums over the batches of the training. A sum is None before the first batch, and from a batch on of which that
    size is not known.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start from zero: in a forked child, too."""
        self._batches = 0
        self._samples: int | None = 0
        self._tokens: int | None = 0
        self._flops = 0.0  # of the steps before `_stated_at`
        self._per_step: float | None = None
        self._stated_at = 0

    def add(self, size: Size) -> None:
        """Add a training batch."""
        samples, tokens = size if isinstance(size, tuple) else (size, None)
        self._batches += 1
        self._samples = None if self._samples is None or samples is None else self._samples + samples
        self._tokens = None if self._tokens is None or tokens is None else self._tokens + tokens

    @property
    def samples(self) -> int | None:
        """The samples in all batches."""
        return self._samples if self._batches else None

    @property
    def tokens(self) -> int | None:
        """The tokens in all batches, padding included."""
        return self._tokens if self._batches else None

    def state_flops(self, per_step: float, steps: int) -> None:
        """Take the FLOPs of each step after the first `steps`."""
        self._flops, self._stated_at = self.flops(steps) or 0.0, steps
        self._per_step = per_step

    def flops(self, steps: int) -> float | None:
        """Return the FLOPs of all steps, None if the program has stated none."""
        return None if self._per_step is None else self._flops + self._per_step * max(0, steps - self._stated_at)
