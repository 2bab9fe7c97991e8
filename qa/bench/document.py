"""Generated parts of the documents, each between two markers, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def split(text: str, begin: str, end: str) -> tuple[str, str, str]:
    """Return the text before the marker `begin`, between the markers, and after `end`.

    Raises ValueError if a marker is missing.
    """
    before, found, rest = text.partition(begin)
    between, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the lines {begin} and {end} are missing")
    return before, between, after


def replaced(text: str, begin: str, end: str, made: str) -> str:
    """Return the text with `made` between the markers. Raises ValueError if a marker is missing."""
    before, _, after = split(text, begin, end)
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def put(path: Path, begin: str, end: str, made: str) -> None:
    """Write `made` between the markers of the document. Raises ValueError if a marker is missing."""
    try:
        text = replaced(path.read_text(), begin, end, made)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    path.write_text(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str] | None = None) -> str:
    """Return a table in Markdown; without a `rule`, all columns but the first are aligned to the right."""
    lines = [head, rule or ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
