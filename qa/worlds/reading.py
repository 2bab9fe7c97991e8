"""The page read by a parser of its own: elements, text, and the rows of its table."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input"}
_INLINE = {"a", "b", "bdi", "small", "span", "strong", "time"}


@dataclass
class Row:
    """A row of the table, with the text of its cells."""

    kind: str
    key: str
    cells: list[str] = field(default_factory=list)


@dataclass
class Group:
    """A GPU with its rows."""

    key: str
    level: str
    rows: list[Row] = field(default_factory=list)

    def of(self, kind: str) -> list[Row]:
        """Return the rows of a kind: gpu, mig, process or notes."""
        return [row for row in self.rows if row.kind == kind]


class Reader(HTMLParser):
    """Parses a part of the page. An element that is not closed, and code in an attribute, are errors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.items: list[str] = []  # the problems
        self.groups: list[Group] = []
        self._grouped = False  # in the table of the GPUs
        self._words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.elements.append(tag)
        assert len(values) == len(attrs)
        assert not {name for name in values if name == "style" or name.startswith("on")}
        if tag not in _INLINE:
            self._words.append(" ")
        if tag == "a":
            self.links.append(values["href"])
        elif tag == "li":
            self.items.append("")
        elif tag == "table":
            self._grouped = values.get("id") == "gpus"
        elif tag == "tbody" and self._grouped:
            self.groups.append(Group(values["data-key"], values["class"].split()[0]))
        elif tag == "tr" and self.groups and self._grouped:
            self.groups[-1].rows.append(Row(values["class"].split()[0], values["data-key"]))
        elif tag in {"th", "td"} and self.groups and self._grouped:
            self.groups[-1].rows[-1].cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag not in _INLINE:
            self._words.append(" ")

    def handle_data(self, data: str) -> None:
        self._words.append(data)
        if "li" in self.open:
            self.items[-1] += data
        elif "tbody" in self.open and self._grouped and {"td", "th"}.intersection(self.open):
            self.groups[-1].rows[-1].cells[-1] += data

    @property
    def text(self) -> str:
        """The words, with one blank between them."""
        return " ".join("".join(self._words).split())
