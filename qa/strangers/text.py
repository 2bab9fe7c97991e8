"""Source text with places to fill in."""

from __future__ import annotations

import re
import textwrap

_PLACE = re.compile(r"^(?P<indent>[ ]*)@(?P<name>[a-z_]+)@$|@(?P<inline>[a-z_]+)@", re.MULTILINE)


def fill(text: str, /, **values: object) -> str:
    """Return the dedented text with each `@name@` replaced. A name alone on its line takes several lines, which get the
    indentation of that line; an empty value removes the line. Unknown names stay.
    """

    def put(found: re.Match[str]) -> str:
        name = found["name"] or found["inline"]
        if name not in values:
            return found[0]
        value = str(values[name])
        return value if found["inline"] else textwrap.indent(value.strip("\n"), found["indent"])

    return _PLACE.sub(put, textwrap.dedent(text).strip("\n"))


def lines(*parts: str) -> str:
    """Return the parts that are not empty, one below the other."""
    return "\n".join(textwrap.dedent(part).strip("\n") for part in parts if part.strip())
