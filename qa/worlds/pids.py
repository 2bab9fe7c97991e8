"""The pids of equal processes, as `status` writes them."""

from __future__ import annotations


def pids_of(text: str) -> list[int]:
    """Return the pids of a text such as "70, 72-74"."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(", ")]
    return [pid for run in ends for pid in range(run[0], run[-1] + 1)]
