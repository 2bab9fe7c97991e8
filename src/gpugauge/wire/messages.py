"""The messages that the hook in a training process and the daemon share, and where they meet.

One message is one datagram on a Unix SOCK_SEQPACKET socket: UTF-8 JSON of at most 16 KiB. Within one major version both
sides ignore keys that they do not know and take missing keys as absent, so neighbouring minor versions understand each
other. Runs on Python 3.9 with the standard library only: a training process loads it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from gpugauge.text import printable

VERSION = (1, 1)  # major, minor
MAX_BYTES = 16 * 1024
MAX_TEXT = 64  # characters
MAX_LONG_TEXT = 256  # of a fact that comes with a snapshot: lists of architectures, of visible devices
MAX_DEVICES = 16
MAX_ENTRIES = 64  # facts, and kinds of parameters

# Durations are counted by powers of two: bucket i holds those of at most 2^(i + LOG2_FIRST) seconds and more than half
# of that; the first also what is shorter, the last also what is longer.
LOG2_FIRST = -20
LOG2_BUCKETS = 34

SYSTEM_SOCKET = "/run/gpugauge/hook.sock"
SOCKET_VARIABLE = "GPUGAUGE_HOOK_SOCKET"

_MAX_INTEGER = 2**63 - 1


class WireError(ValueError):
    """Not a message of ours; the text says what was expected, `reason` is oversized, malformed or foreign."""

    def __init__(self, reason: str, expected: str) -> None:
        super().__init__(expected)
        self.reason = reason


@dataclass(frozen=True)
class Hello:
    """The first message of a connection: who speaks. `started` is Unix time; what `facts` holds is frozen here."""

    session: str
    sequence: int
    pid: int | None = None
    pid_namespace: int | None = None
    started: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Things that happened one after another: how many, their seconds in total, Unix time of the last, durations."""

    count: int = 0
    seconds: float = 0.0
    last: float | None = None
    log2: tuple[int, ...] = ()


@dataclass(frozen=True)
class Parameters:
    """Parameters of one dtype on one device, both as torch names them: tensors, elements, bytes."""

    device: str
    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Device:
    """A device that the process sees, `index` as it counts them; figures of torch's caching allocator once it is used,
    sizes in bytes.
    """

    index: int
    uuid: str | None = None
    allocated: int | None = None
    allocated_peak: int | None = None
    reserved: int | None = None
    active: int | None = None
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    name: str | None = None
    capability: str | None = None  # compute capability, as "9.0"


@dataclass(frozen=True)
class Snap:
    """Everything that the hook has counted since the session began; `monotonic_ns` is the sender's clock.

    What follows `errors` came with version 1.1: facts that are known only later than hello, what the steps are counted
    by, the tensors that optimizers keep, the part of the waits for batches in which the device had nothing to do, and
    the part of the steps in which this process did not wait for others.
    """

    session: str
    sequence: int
    monotonic_ns: int | None = None
    steps: Progress | None = None
    batches: Progress | None = None
    parameters: tuple[Parameters, ...] = ()
    devices: tuple[Device, ...] = ()
    errors: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    step_source: str | None = None
    optimizer_state: tuple[Parameters, ...] = ()
    exposed_wait_seconds: float | None = None
    local_work_seconds: float | None = None
    compilations: int | None = None


@dataclass(frozen=True)
class Bye:
    """The last message of a session, and why it ends: one of END_REASONS."""

    session: str
    sequence: int
    reason: str


END_REASONS = ("finished", "error", "out_of_memory", "interrupted")

Message = Union[Hello, Snap, Bye]
_KINDS = {"hello": Hello, "snap": Snap, "bye": Bye}
_NAMES = {kind: name for name, kind in _KINDS.items()}


# What the steps can be counted by: hooks of the optimizers, batches of the loaders (when a compiled optimizer reports
# none), calls of gpugauge.hook.tick(), or the engine of DeepSpeed.
STEP_SOURCES = ("optimizer", "batches", "tick", "deepspeed")


def encode(message: Message) -> bytes:
    """Return the datagram of a message; raises WireError when it would be too long."""
    body: dict[str, Any] = {"v": VERSION, "kind": _NAMES[type(message)]}
    body.update(vars(message))
    data = json.dumps(body, default=vars, separators=(",", ":"), ensure_ascii=False).encode()
    if len(data) > MAX_BYTES:
        raise WireError("oversized", f"a message has at most {MAX_BYTES} bytes, this one {len(data)}")
    return data


def decode(data: bytes) -> Message:
    """Return the message of a datagram; raises WireError that says what was expected instead."""
    if len(data) > MAX_BYTES:
        raise WireError("oversized", f"a message has at most {MAX_BYTES} bytes")
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
    raise WireError("malformed", f"the kind is one of {', '.join(_KINDS)}")


def _hello(fields: _Fields) -> Hello:
    return Hello(
        session=fields.text("session"),
        sequence=fields.integer("sequence"),
        pid=fields.optional_integer("pid"),
        pid_namespace=fields.optional_integer("pid_namespace"),
        started=fields.optional_number("started"),
        facts=fields.facts(MAX_TEXT),
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
        facts=fields.facts(MAX_LONG_TEXT),
        step_source=fields.optional_text("step_source"),
        optimizer_state=tuple(_parameters(entry) for entry in fields.entries("optimizer_state", MAX_ENTRIES)),
        exposed_wait_seconds=fields.optional_number("exposed_wait_seconds"),
        local_work_seconds=fields.optional_number("local_work_seconds"),
        compilations=fields.optional_integer("compilations"),
    )


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


def _parameters(entry: _Fields) -> Parameters:
    return Parameters(
        device=entry.text("device"),
        dtype=entry.text("dtype"),
        tensors=entry.integer("tensors"),
        elements=entry.integer("elements"),
        bytes=entry.integer("bytes"),
    )


def _device(entry: _Fields) -> Device:
    figures = ("allocated", "allocated_peak", "reserved", "active", "inactive_split", "retries", "ooms")
    return Device(
        entry.integer("index"),
        entry.optional_text("uuid"),
        **{name: entry.optional_integer(name) for name in figures},
        name=entry.optional_text("name"),
        capability=entry.optional_text("capability"),
    )


class _Fields:
    """Reads one JSON object strictly: a key may be missing or null, but never of another type or out of bounds."""

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
            raise WireError("malformed", f"{key} in {self._where} is 1 to {MAX_TEXT} printable characters")
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

    def optional_number(self, key: str) -> float | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if not (_is_integer(value) or (isinstance(value, float) and math.isfinite(value) and value >= 0)):
            raise WireError("malformed", f"{key} in {self._where} is a finite number, not below 0")
        return float(value)

    def entries(self, key: str, limit: int) -> list[_Fields]:
        values = self.get(key, list) or []
        if len(values) > limit:
            raise WireError("malformed", f"{key} has at most {limit} entries")
        return [_Fields(value, f"an entry of {key}") for value in values]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INTEGER


def _is_text(value: object, limit: int = MAX_TEXT) -> bool:
    return isinstance(value, str) and 0 < len(value) <= limit and value.isprintable()


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Return text as a message may carry it: printable, and not longer than `limit` characters."""
    return printable(text[:limit])


def log2_bucket(nanoseconds: int) -> int:
    """Return the index of the bucket that a duration belongs to; see LOG2_FIRST."""
    ticks = ((nanoseconds << -LOG2_FIRST) - 1) // 1_000_000_000
    return min(ticks.bit_length(), LOG2_BUCKETS - 1) if ticks > 0 else 0


def server_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return where a daemon listens unless told otherwise: a user's own daemon under its runtime directory."""
    if path := environ.get(SOCKET_VARIABLE):
        return path
    runtime = environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/gpugauge/hook.sock" if runtime and os.geteuid() != 0 else SYSTEM_SOCKET


def client_paths(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the sockets that a training process tries, in this order: the machine's daemon before a user's own."""
    if path := environ.get(SOCKET_VARIABLE):
        return (path,)
    runtime = environ.get("XDG_RUNTIME_DIR")
    return (SYSTEM_SOCKET, f"{runtime}/gpugauge/hook.sock") if runtime else (SYSTEM_SOCKET,)
