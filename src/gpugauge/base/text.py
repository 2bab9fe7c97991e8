"""Text from outside, made safe for a terminal, a log or a label. Standard library only, Python 3.9."""

from __future__ import annotations

_MOST_DIGITS = 10


def whole(text: str | None) -> int | None:
    """Return the whole number that a text is, None if it is none; `isdigit` is true for "²", which int refuses."""
    return int(text) if text and len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def printable(text: str) -> str:
    """Return the text with `?` for each character that is not printable, so that no text can control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def cpu_set(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as 0-7,16; empty for another text."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
