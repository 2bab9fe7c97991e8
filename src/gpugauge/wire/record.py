"""The shared record: memory through which a training process reports its phase, also while it is blocked.

The process sends one sealed memfd with its first message and writes the record at the boundaries of its phases. The
daemon reads it with pread, which the process can neither delay nor make fail. Times in the record are CLOCK_MONOTONIC,
which all processes of a machine share. Runs on Python 3.9 with the standard library only: a training process loads it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap

RECORD_BYTES = 4096

# A later minor version may append phases; a reader maps an unknown phase to "other".
PHASES = ("other", "starting", "training", "evaluating", "checkpointing", "compiling", "loading", "generating")

# Head: magic, number of phases. Body, in words of eight bytes: sequence, phase, since, steps, batches, nanoseconds in
# each phase before `since`, and the sequence again. If the two differ, the process wrote during the read.
_MAGIC = b"gpg1"
_HEAD = struct.Struct("=4sI")
_BODY = struct.Struct(f"=5Q{len(PHASES)}QQ")
_MAX_PHASES = 64

# Indexes of the words, for a writer that changes only some of them: the sequence first, and its copy at the end.
SEQUENCE, PHASE, SINCE, _STEPS, _BATCHES, SPENT = range(6)
SEQUENCE_COPY = SPENT + len(PHASES)


@dataclass(frozen=True)
class SharedRecord:
    """The values of a record: the phase, Unix time of its begin, seconds in each phase until now. `steps` and `batches`
    are those of the last message.
    """

    phase: str
    since: float
    steps: int
    batches: int
    seconds: Mapping[str, float]


def write_head(memory: bytearray | mmap) -> None:
    """Write the head of an empty record."""
    _HEAD.pack_into(memory, 0, _MAGIC, len(PHASES))


def words(memory: mmap) -> memoryview:
    """Return the words of the body. The caller releases the view before it closes the memory."""
    return memoryview(memory)[_HEAD.size : _HEAD.size + _BODY.size].cast("Q")


def write(
    memory: bytearray | mmap,
    sequence: int,
    phase: int,
    since: int,
    steps: int,
    batches: int,
    nanoseconds: Sequence[int],
) -> None:
    """Write the whole body, in about 1 µs. `phase` is an index into PHASES; times are nanoseconds."""
    _BODY.pack_into(memory, _HEAD.size, sequence, phase, since, steps, batches, *nanoseconds, sequence)


def read(data: bytes, monotonic_ns: int, unix: float) -> SharedRecord | None:
    """Return the values of a record at the moment given by both clocks; None for an invalid or half-written record."""
    if len(data) < _HEAD.size:
        return None
    magic, count = _HEAD.unpack_from(data)
    body = struct.Struct(f"=5Q{count}QQ") if count <= _MAX_PHASES else None
    if magic != _MAGIC or body is None or len(data) < _HEAD.size + body.size:
        return None
    sequence, phase, since, steps, batches, *nanoseconds, sequence_copy = body.unpack_from(data, _HEAD.size)
    if sequence == 0 or sequence != sequence_copy or since > monotonic_ns:
        return None
    seconds = dict.fromkeys(PHASES, 0.0)
    for index, spent in enumerate(nanoseconds):
        seconds[_name(index)] += spent / 1e9
    lasting = (monotonic_ns - since) / 1e9
    seconds[_name(phase)] += lasting
    # The two clocks are not read at the same instant: rounding keeps the time of an unchanged phase constant.
    return SharedRecord(_name(phase), round(unix - lasting, 2), steps, batches, seconds)


def _name(index: int) -> str:
    return PHASES[index] if index < len(PHASES) else "other"
