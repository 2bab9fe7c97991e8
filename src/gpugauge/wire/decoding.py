"""Decodes the datagrams of hooks and validates every field. Only the daemon loads this module.

A hook may be of another minor version or hostile: unknown keys are ignored, missing keys are absent, and a value of the
wrong type or out of bounds rejects the message.
"""

from __future__ import annotations

import json
from typing import Any

from gpugauge.wire.messages import (
    FLOP_SOURCES,
    KIND_NAMES,
    LOG2_BUCKETS,
    MAX_DEVICES,
    MAX_ENTRIES,
    MAX_LONG_TEXT_CHARACTERS,
    MAX_MESSAGE_BYTES,
    MAX_TEXT_CHARACTERS,
    VERSION,
    Bye,
    Device,
    Hello,
    Loader,
    Message,
    Parameters,
    Progress,
    Snap,
    WireError,
)
from gpugauge.wire.record import MAX_PHASES, PHASES

_MAX_FLOPS = 1e36  # in all; 10^24 in each step are more than any machine has
_MAX_INTEGER = 2**63 - 1  # of every other number: sums over entries and over the sessions of a process stay finite
_LOADER_COUNTS = ("measured", "epochs", "starts", "worker_bytes")
_LOADER_SECONDS = (
    *("cpu_seconds", "threads_seconds", "queued_seconds", "storage_seconds", "blocked_seconds", "start_seconds"),
    *("slowest", "process_cpu_seconds", "thread_queued_seconds"),
)


def decode(data: bytes) -> Message:
    """Return the message of a datagram. Raises WireError for an invalid datagram."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError("oversized", f"a message has at most {MAX_MESSAGE_BYTES} bytes")
    try:
        raw = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise WireError("foreign", "a message is one JSON object in UTF-8") from None
    fields = _Fields(raw, "the message")
    version = fields.get("v", list)
    if not version or version[0] != VERSION[0]:
        raise WireError("foreign", f"the protocol's major version is {VERSION[0]}, in a list under the key v")
    kind = fields.text("kind")
    if kind == "hello":
        return _hello(fields)
    if kind == "snap":
        return _snap(fields)
    if kind == "bye":
        return Bye(fields.text("session"), fields.integer("sequence"), fields.text("reason"))
    raise WireError("malformed", f"the kind is one of {', '.join(KIND_NAMES.values())}")


def _hello(fields: _Fields) -> Hello:
    return Hello(
        session=fields.text("session"),
        sequence=fields.integer("sequence"),
        pid=fields.optional_integer("pid"),
        pid_namespace=fields.optional_integer("pid_namespace"),
        started=fields.optional_number("started"),
        facts=fields.facts(MAX_TEXT_CHARACTERS),
    )


def _snap(fields: _Fields) -> Snap:
    return Snap(
        session=fields.text("session"),
        sequence=fields.integer("sequence"),
        monotonic_ns=fields.optional_integer("monotonic_ns"),
        steps=_progress(fields, "steps"),
        batches=_progress(fields, "batches"),
        parameters=tuple(_parameters(entry) for entry in fields.entries("parameters", MAX_ENTRIES)),
        devices=tuple(_device(entry) for entry in fields.entries("devices", MAX_DEVICES)),
        errors=fields.optional_integer("errors"),
        facts=fields.facts(MAX_LONG_TEXT_CHARACTERS),
        step_source=fields.optional_text("step_source"),
        optimizer_state=tuple(_parameters(entry) for entry in fields.entries("optimizer_state", MAX_ENTRIES)),
        exposed_wait_seconds=fields.optional_number("exposed_wait_seconds"),
        local_work_seconds=fields.optional_number("local_work_seconds"),
        compilations=fields.optional_integer("compilations"),
        waits=_seconds(fields, "waits"),
        samples=fields.optional_integer("samples"),
        tokens=fields.optional_integer("tokens"),
        flops=_flops(fields),
        loader=_loader(fields.get("loader", dict)),
    )


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


def _flops(fields: _Fields) -> dict[str, float] | None:
    """Return the model FLOPs by source, without sources that a later minor version added."""
    raw = fields.get("flops", dict)
    if raw is None:
        return None
    entry = _Fields(raw, "flops")
    found = {source: entry.optional_number(source, _MAX_FLOPS) for source in FLOP_SOURCES}
    return {source: count for source, count in found.items() if count is not None} or None


def _progress(fields: _Fields, key: str) -> Progress | None:
    raw = fields.get(key, dict)
    if raw is None:
        return None
    entry = _Fields(raw, key)
    log2 = entry.get("log2", list) or []
    if len(log2) > LOG2_BUCKETS or not all(_is_integer(count) for count in log2):
        raise WireError("malformed", f"log2 of {key} is a list of at most {LOG2_BUCKETS} counts")
    return Progress(
        count=entry.integer("count"),
        seconds=entry.optional_number("seconds") or 0.0,
        last=entry.optional_number("last"),
        log2=tuple(log2),
    )


def _loader(raw: object) -> Loader | None:
    if raw is None:
        return None
    entry = _Fields(raw, "loader")
    figures: dict[str, Any] = {name: entry.optional_integer(name) for name in _LOADER_COUNTS}
    figures |= {name: entry.optional_number(name) for name in _LOADER_SECONDS}
    return Loader(entry.integer("batches"), **figures)


def _parameters(entry: _Fields) -> Parameters:
    return Parameters(
        device=entry.text("device"),
        dtype=entry.text("dtype"),
        tensors=entry.integer("tensors"),
        elements=entry.integer("elements"),
        bytes=entry.integer("bytes"),
    )


def _device(entry: _Fields) -> Device:
    memory = ("allocated", "allocated_peak", "reserved", "active", "inactive_split")
    figures = (*memory, "retries", "ooms", "device_allocs", "device_frees", "step_allocated", "limit")
    return Device(
        entry.integer("index"),
        entry.optional_text("uuid"),
        **{name: entry.optional_integer(name) for name in figures},
        name=entry.optional_text("name"),
        capability=entry.optional_text("capability"),
    )


class _Fields:
    """Strict reader of one JSON object: a key may be missing or null, but not of another type or out of bounds."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise WireError("foreign" if where == "the message" else "malformed", f"{where} is a JSON object")
        self._raw = raw
        self._where = where

    def get(self, key: str, kind: type) -> Any:
        value = self._raw.get(key)
        if value is not None and not isinstance(value, kind):
            raise WireError("malformed", f"{key} in {self._where} is a {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        value = self._raw.get(key)
        if not isinstance(value, str) or not _is_text(value):
            raise WireError("malformed", f"{key} in {self._where} is 1 to {MAX_TEXT_CHARACTERS} printable characters")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self._raw.get(key) is not None else None

    def facts(self, limit: int) -> dict[str, str]:
        facts: dict[str, str] = self.get("facts", dict) or {}
        if (
            len(facts) > MAX_ENTRIES
            or not all(map(_is_text, facts))
            or not all(_is_text(value, limit) for value in facts.values())
        ):
            raise WireError(
                "malformed", f"facts are at most {MAX_ENTRIES} texts of at most {limit} printable characters"
            )
        return facts

    def integer(self, key: str) -> int:
        value = self.optional_integer(key)
        if value is None:
            raise WireError("malformed", f"{key} in {self._where} is missing")
        return value

    def optional_integer(self, key: str) -> int | None:
        value = self._raw.get(key)
        if value is not None and not _is_integer(value):
            raise WireError("malformed", f"{key} in {self._where} is a whole number from 0 to 2^63 - 1")
        return value

    def optional_number(self, key: str, most: float = _MAX_INTEGER) -> float | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if not (_is_integer(value) or (isinstance(value, float) and 0 <= value <= most)):
            limit = "2^63 - 1" if most == _MAX_INTEGER else f"{most:g}"
            raise WireError("malformed", f"{key} in {self._where} is a finite number from 0 to {limit}")
        return float(value)

    def entries(self, key: str, limit: int) -> list[_Fields]:
        values = self.get(key, list) or []
        if len(values) > limit:
            raise WireError("malformed", f"{key} has at most {limit} entries")
        return [_Fields(value, f"an entry of {key}") for value in values]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INTEGER


def _is_text(value: object, limit: int = MAX_TEXT_CHARACTERS) -> bool:
    return isinstance(value, str) and 0 < len(value) <= limit and value.isprintable()
