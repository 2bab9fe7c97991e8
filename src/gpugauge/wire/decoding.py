"""Decodes and validates the datagrams of hooks, for the daemon only: of another minor version, or hostile ones."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

from gpugauge.wire import messages as wire
from gpugauge.wire.messages import WireError
from gpugauge.wire.record import MAX_PHASES, PHASES

_MAX_FLOPS = 1e36  # in all; 10^24 in each step are more than any machine has
_MAX_INTEGER = 2**63 - 1  # of every other number: sums over entries and over the sessions of a process stay finite


def decode(data: bytes) -> wire.Message:
    """Return the message of a datagram. Raises WireError for an invalid datagram."""
    if len(data) > wire.MAX_MESSAGE_BYTES:
        raise WireError("oversized", f"a message has at most {wire.MAX_MESSAGE_BYTES} bytes")
    try:
        raw = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise WireError("foreign", "a message is one JSON object in UTF-8") from None
    fields = _Fields(raw, "the message")
    version = fields.get("v", list)
    if not version or version[0] != wire.VERSION[0]:
        raise WireError("foreign", f"the protocol's major version is {wire.VERSION[0]}, in a list under the key v")
    kind = fields.text("kind")
    for message, name in wire.KIND_NAMES.items():
        if name == kind:
            found: wire.Message = _read(message, fields)
            return found
    raise WireError("malformed", f"the kind is one of {', '.join(wire.KIND_NAMES.values())}")


def _read(kind: type[Any], fields: _Fields) -> Any:
    """Return a message, or a part of one, from its fields."""
    return kind(**{name: read(fields, name) for name, read in _READERS[kind].items()})


def _part(kind: type[Any], fields: _Fields, key: str) -> Any:
    raw = fields.get(key, dict)
    return None if raw is None else _read(kind, _Fields(raw, key))


def _parts(kind: type[Any], limit: int, fields: _Fields, key: str) -> tuple[Any, ...]:
    values = fields.get(key, list) or []
    if len(values) > limit:
        raise WireError("malformed", f"{key} has at most {limit} entries")
    return tuple(_read(kind, _Fields(value, f"an entry of {key}")) for value in values)


def _seconds(fields: _Fields, key: str) -> dict[str, float] | None:
    """Return seconds by phase; those of phases that a later minor version added are of the phase other."""
    raw = fields.get(key, dict)
    if raw is None:
        return None
    if len(raw) > MAX_PHASES:
        raise WireError("malformed", f"{key} has at most {MAX_PHASES} entries")
    entry, found = _Fields(raw, key), dict[str, float]()
    for phase in raw:
        known = phase if phase in PHASES else "other"
        found[known] = found.get(known, 0.0) + (entry.optional_number(phase) or 0.0)
    return found


def _flops(fields: _Fields, key: str) -> dict[str, float] | None:
    """Return the model FLOPs by source, without sources that a later minor version added."""
    raw = fields.get(key, dict)
    if raw is None:
        return None
    entry = _Fields(raw, key)
    found = {source: entry.optional_number(source, _MAX_FLOPS) for source in wire.FLOP_SOURCES}
    return {source: count for source, count in found.items() if count is not None} or None


def _counts(fields: _Fields, key: str) -> tuple[int, ...]:
    found = fields.get(key, list) or []
    if len(found) > wire.LOG2_BUCKETS or not all(_is_integer(count) for count in found):
        raise WireError("malformed", f"{key} of {fields.where} is a list of at most {wire.LOG2_BUCKETS} counts")
    return tuple(found)


def _facts(fields: _Fields, key: str, limit: int = wire.MAX_TEXT_CHARACTERS) -> dict[str, str]:
    facts: dict[str, str] = fields.get(key, dict) or {}
    texts = all(map(_is_text, facts)) and all(_is_text(value, limit) for value in facts.values())
    if len(facts) > wire.MAX_ENTRIES or not texts:
        raise WireError(
            "malformed", f"facts are at most {wire.MAX_ENTRIES} texts of at most {limit} printable characters"
        )
    return facts


def _long_facts(fields: _Fields, key: str) -> dict[str, str]:
    return _facts(fields, key, wire.MAX_LONG_TEXT_CHARACTERS)


class _Fields:
    """Strict reader of one JSON object: a key may be missing or null, but not of another type or out of bounds."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise WireError("foreign" if where == "the message" else "malformed", f"{where} is a JSON object")
        self._raw = raw
        self.where = where

    def get(self, key: str, kind: type) -> Any:
        value = self._raw.get(key)
        if value is not None and not isinstance(value, kind):
            raise WireError("malformed", f"{key} in {self.where} is a {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        value = self._raw.get(key)
        if not isinstance(value, str) or not _is_text(value):
            raise WireError(
                "malformed", f"{key} in {self.where} is 1 to {wire.MAX_TEXT_CHARACTERS} printable characters"
            )
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self._raw.get(key) is not None else None

    def integer(self, key: str) -> int:
        value = self.optional_integer(key)
        if value is None:
            raise WireError("malformed", f"{key} in {self.where} is missing")
        return value

    def optional_integer(self, key: str) -> int | None:
        value = self._raw.get(key)
        if value is not None and not _is_integer(value):
            raise WireError("malformed", f"{key} in {self.where} is a whole number from 0 to 2^63 - 1")
        return value

    def optional_number(self, key: str, most: float = _MAX_INTEGER) -> float | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if not (_is_integer(value) or (isinstance(value, float) and 0 <= value <= most)):
            limit = "2^63 - 1" if most == _MAX_INTEGER else f"{most:g}"
            raise WireError("malformed", f"{key} in {self.where} is a finite number from 0 to {limit}")
        return float(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INTEGER


def _is_text(value: object, limit: int = wire.MAX_TEXT_CHARACTERS) -> bool:
    return isinstance(value, str) and 0 < len(value) <= limit and value.isprintable()


_BY_TYPE: dict[str, Callable[[_Fields, str], Any]] = {
    "str": _Fields.text,
    "int": _Fields.integer,
    "float": lambda fields, key: fields.optional_number(key) or 0.0,
    "str | None": _Fields.optional_text,
    "int | None": _Fields.optional_integer,
    "float | None": _Fields.optional_number,
    "tuple[int, ...]": _counts,
    "tuple[Parameters, ...]": functools.partial(_parts, wire.Parameters, wire.MAX_ENTRIES),
    "tuple[Device, ...]": functools.partial(_parts, wire.Device, wire.MAX_DEVICES),
    "tuple[Group, ...]": functools.partial(_parts, wire.Group, wire.MAX_GROUPS),
    "tuple[Frame, ...]": functools.partial(_parts, wire.Frame, wire.MAX_FRAMES),
    "Progress | None": functools.partial(_part, wire.Progress),
    "Loader | None": functools.partial(_part, wire.Loader),
    "Mapping[str, str]": _facts,
    "Mapping[str, float] | None": _seconds,
}

# By dataclass, the readers of its fields.
_READERS = {
    kind: {field.name: _BY_TYPE[str(field.type)] for field in dataclasses.fields(kind)}
    for kind in (*wire.KIND_NAMES, wire.Device, wire.Frame, wire.Group, wire.Loader, wire.Parameters, wire.Progress)
}
_READERS[wire.Snap].update(facts=_long_facts, flops=_flops)
