"""docs/reliability.md: sections that are made, each between its two markers."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "reliability.md"


def put(name: str, made: str) -> None:
    """Write the section `name`. Raises ValueError if the document has no such markers."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = DOCUMENT.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{DOCUMENT}: {begin} and {end} are missing")
    DOCUMENT.write_text(f"{before}{begin}\n\n{made}\n\n{end}{after}")
