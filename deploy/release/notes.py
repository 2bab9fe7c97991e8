"""Prints the notes of a release: the section of CHANGELOG.md for its version.

python3 deploy/release/notes.py 1.2.3
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

_CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
_HEADING = re.compile(r"^## (?P<version>\S+)(?: / (?P<date>\S+))?[ \t]*$", re.MULTILINE)


class NotesError(Exception):
    """There are no notes of this version; the message gives the reason."""


def notes(text: str, version: str) -> str:
    """Return the section of a version, without its heading. Raises NotesError."""
    headings = list(_HEADING.finditer(text))
    found = [heading["version"] for heading in headings]
    if version not in found:
        near = difflib.get_close_matches(version, found, 1) or found[:1]
        raise NotesError(f"there is no section {version}" + (f", the nearest is {near[0]}" if near else ""))
    if found.count(version) > 1:
        raise NotesError(f"there are {found.count(version)} sections {version}")
    at = found.index(version)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", headings[at]["date"] or ""):
        raise NotesError(f"section {version} has no date: expected `## {version} / YYYY-MM-DD`")
    end = headings[at + 1].start() if at + 1 < len(headings) else len(text)
    section = text[headings[at].end() : end].strip()
    if not section:
        raise NotesError(f"section {version} is empty")
    return section


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="X.Y.Z, without the v of the tag")
    parser.add_argument("--changelog", type=Path, default=_CHANGELOG)
    options = parser.parse_args()
    try:
        sys.stdout.write(notes(options.changelog.read_text(encoding="utf-8"), options.version) + "\n")
    except (OSError, NotesError) as error:
        sys.stderr.write(f"notes: {options.changelog.name}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
