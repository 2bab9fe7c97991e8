"""Suggestions for misspelled names in error sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_LISTED_NAMES = 30


def nearest(wrong: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the valid name that is most similar to a wrong one, or None if none is similar."""
    return next(iter(difflib.get_close_matches(wrong, list(valid), 1, cutoff)), None)


def hint(wrong: str, valid: Iterable[str]) -> str:
    """Return `; did you mean NAME?`; if none is similar, all valid names, unless they are too many."""
    names = list(valid)
    if near := nearest(wrong, names):
        return f"; did you mean {near}?"
    return f"; valid: {', '.join(names)}" if len(names) <= _MAX_LISTED_NAMES else ""
