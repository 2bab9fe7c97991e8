"""Text in the columns of a terminal: widths as the terminal shows them, tables that fit, lines that wrap."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpugauge.terminal.style import RESET

_Subject = TypeVar("_Subject")
_MIN_WIDTH = 20
_GAP = 2  # blanks between two columns
# A word, or a number with its unit: "46" at the end of a line and "%" on the next are hard to read.
_WORDS = re.compile(r"\S*\d (?:%|ms|s|min|h|d|[GM]iB|MHz|W|°C)(?!\w)\S*|\S+")


def cells(text: str) -> int:
    """Return the width of a text on a terminal: wide characters of East Asia take two cells, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """Return the text, or its beginning and `…` if it is wider than `width` cells."""
    return text if cells(text) <= width else _fitting(text, width - 1) + "…"


def _named(text: str, width: int) -> str:
    """Return a text that is cut before the number of processes for which it stands, as in `train.py ×8`."""
    name, times, number = text.rpartition(" ×")
    tail = f" ×{number}" if times and number.isdecimal() else ""
    return cut(name, width - cells(tail)) + tail if tail and cells(tail) + 1 < width else cut(text, width)


def pad(text: str, width: int, right: bool = False) -> str:
    """Return the text with blanks up to `width` cells; `right` aligns it at the right."""
    blanks = " " * max(0, width - cells(text))
    return blanks + text if right else text + blanks


def wrap(text: str, width: int, indent: str = "", following: str | None = None) -> list[str]:
    """Return the text as lines of at most `width` cells; words that are wider than a line are divided. A number and its
    unit are one word.
    """
    rest = indent if following is None else following
    lines, line, begin = [], indent, True
    for word in _WORDS.findall(" ".join(text.split())):
        if not begin and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line, begin = rest, True
        line += ("" if begin else " ") + word
        begin = False
        while cells(line) > width and cells(line) > cells(rest) + 1:
            head = _fitting(line, width)
            lines.append(head)
            line = rest + line[len(head) :]
    return [*lines, line] if not begin else lines


def _fitting(text: str, width: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _cells(character)
        if used > width:
            return text[:place]
    return text


@dataclass(frozen=True, slots=True)
class Column(Generic[_Subject]):
    """`value` is the text about a subject at a Unix time. `least` is the number of cells to which a column may be cut,
    the widest first; None if it is never cut. Columns with a `rank` are left out where there is too little space, the
    highest rank first.
    """

    heading: str
    value: Callable[[_Subject, float], str]
    right: bool = False
    least: int | None = None
    rank: int = 0


def row_of(columns: Sequence[Column[_Subject]], subject: _Subject, now: float) -> list[str]:
    """Return the values of a subject."""
    return [column.value(subject, now) for column in columns]


class Grid:
    """Columns whose widths fit all rows, and a terminal of `width` cells with an indent."""

    def __init__(
        self, columns: Sequence[Column[_Subject]], rows: Sequence[Sequence[str]], width: int, indent: int = 0
    ) -> None:
        needed = [max([cells(c.heading), *(cells(row[i]) for row in rows)]) for i, c in enumerate(columns)]
        self._columns, self._indent = columns, indent
        self._kept = list(range(len(columns)))
        while self._width(self._least(needed)) > width and any(columns[i].rank for i in self._kept):
            self._kept.remove(max(self._kept, key=lambda i: columns[i].rank))
        excess = self._width({i: needed[i] for i in self._kept}) - width
        self._widths = {i: needed[i] for i in self._kept}
        least = self._least(needed)
        while excess > 0 and (wider := [i for i in self._kept if self._widths[i] > least[i]]):
            self._widths[max(wider, key=self._widths.__getitem__)] -= 1
            excess -= 1

    def _least(self, needed: Sequence[int]) -> dict[int, int]:
        limits = {i: self._columns[i].least for i in self._kept}
        return {i: needed[i] if least is None else min(needed[i], least) for i, least in limits.items()}

    def _width(self, widths: dict[int, int]) -> int:
        return self._indent + sum(widths.values()) + _GAP * (len(widths) - 1)

    def heading(self) -> str:
        """Return the line of headings."""
        return self.line([column.heading for column in self._columns])

    def line(self, row: Sequence[str]) -> str:
        """Return a row as a line."""
        parts = [pad(_named(row[i], self._widths[i]), self._widths[i], self._columns[i].right) for i in self._kept]
        return " " * self._indent + (" " * _GAP).join(parts).rstrip()


class Writer:
    """Makes lines of a width, but not below 20; without `colour` they have no style."""

    def __init__(self, width: int, *, colour: bool) -> None:
        self.width, self._colour = max(_MIN_WIDTH, width), colour

    def paint(self, text: str, style: str) -> str:
        """Return a text with a style."""
        return f"{style}{text}{RESET}" if style and self._colour else text

    def text(self, text: str, indent: str = "", style: str = "", hanging: int = 0) -> list[str]:
        """Return a text as lines; those after the first stand `hanging` cells further to the right."""
        following = " " * (len(indent) + hanging)
        return [self.paint(line, style) for line in wrap(text, self.width, indent, following)]

    def row(self, row: str, style: str = "") -> list[str]:
        """Return a row of a table; several lines where the terminal is narrower than its narrowest form."""
        if cells(row) <= self.width:
            return [self.paint(row, style)]
        return self.text(row, " " * (len(row) - len(row.lstrip())), style, hanging=2)

    def flow(self, entries: Sequence[str], indent: str = "", style: str = "") -> Iterator[str]:
        """Yield lines of entries, which are divided only if they are wider than a line."""
        line = ""
        for entry in entries:
            if line and cells(f"{indent}{line} · {entry}") > self.width:
                yield from self.text(line, indent, style)
                line = ""
            line += (" · " if line else "") + entry
        yield from self.text(line, indent, style)
