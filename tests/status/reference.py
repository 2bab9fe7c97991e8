"""The tables of docs/http.md about the status in JSON, generated from the model and the comments of its fields."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from gpugauge.status.model import Status

_WORDS = {str: "string", bool: "boolean", int: "integer", float: "number"}


def meanings(kind: Any) -> dict[str, str]:
    """Return the comments of the fields of a dataclass, before or behind them. Raises ValueError if one has none."""
    found: dict[str, str] = {}
    words: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        words += re.findall("#: (.*)", line)
        if name := re.match(r"    (\w+): ", line):
            found[name[1]], words = " ".join(words), []
    if "" in found.values():
        raise ValueError(f"a field of {kind.__name__} has no comment: {found}")
    return found


def tables() -> str:
    """Return a table for each dataclass in a status."""
    kinds: list[Any] = [Status]
    return "\n\n".join(_table(kind, kinds) for kind in kinds)  # which grow meanwhile


def _table(kind: Any, kinds: list[Any]) -> str:
    hints, said = get_type_hints(kind), meanings(kind)
    lines = [f"### {kind.__name__}", "", inspect.getdoc(kind) or "", "", "| field | type | meaning |", "|---|---|---|"]
    for field in fields(kind):
        meaning, kind_words = said[field.name], _words(hints[field.name], kinds)
        if "absent" in field.metadata:
            kind_words = f"{kind_words.removesuffix(' or null')}, or missing"
        name = field.metadata.get("json", field.name)
        lines.append(f"| `{name}` | {kind_words} | {meaning[0].upper()}{meaning[1:]} |")
    return "\n".join(lines)


def _words(hint: Any, kinds: list[Any]) -> str:
    """Return a type in words, and add a dataclass to `kinds`."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is UnionType:
        return f"{_words(parts[0], kinds)} or null"
    if origin is tuple:
        return f"list of {_words(parts[0], kinds)}" if parts[1] is ... else f"list of {len(parts)} numbers"
    if origin is not None:
        return f"object of {_words(parts[1], kinds)}"
    kinds += [hint] if hint not in kinds else []
    return f"[{hint.__name__}](#{hint.__name__.lower()})"
