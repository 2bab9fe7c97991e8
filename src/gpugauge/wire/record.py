"""The shared record, a sealed memfd by which a training process reports its phase, also while it is blocked. The daemon
reads it with pread, which the process can neither delay nor make fail. Standard library only, Python 3.9.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap

RECORD_BYTES = 4096

# A later minor version may append phases; a reader maps an unknown phase to "other".
PHASES = ("other", "starting", "training", "evaluating", "checkpointing", "compiling", "loading", "generating")

# Head: magic, number of phases. Body, in words of eight bytes: sequence, phase, since, steps, batches, nanoseconds in
# each phase before `since`, the sequence again; since version 1.2 also the time of the last step (0 before the first
# one), samples, tokens, and nanoseconds of waits for batches by the phase that they served; since version 1.3 also the
# number of the training thread in its pid namespace. If the two sequences differ, the process wrote during the read.
# The other counts are independent of it: each is stored at once, at every
# step and batch (before version 1.2 with every message).
_MAGIC = b"gpg1"
_HEAD = struct.Struct("=4sI")
_BODY = struct.Struct(f"=5Q{len(PHASES)}Q4Q{len(PHASES)}QQ")
MAX_PHASES = 64

# Indexes of the words, for a writer that changes only some of them: the sequence first, and its copy at the end.
SEQUENCE, PHASE, SINCE, STEPS, BATCHES, SPENT = range(6)
SEQUENCE_COPY = SPENT + len(PHASES)
LAST_STEP, SAMPLES, TOKENS, WAITED = range(SEQUENCE_COPY + 1, SEQUENCE_COPY + 5)
THREAD = WAITED + len(PHASES)
WORDS = THREAD + 1


@dataclass(frozen=True)
class SharedRecord:
    """The values of a record: the phase, Unix time of its begin, counts of steps and batches, seconds in each phase
    until now, the Unix time of the last step, None if unknown, samples, tokens, the seconds of waits by phase, and the
    number of the training thread in the pid namespace of the process, 0 if unknown.
    """

    phase: str
    since: float
    steps: int
    batches: int
    seconds: Mapping[str, float]
    last_step: float | None = None
    samples: int = 0
    tokens: int = 0
    waits: Mapping[str, float] = field(default_factory=dict)
    thread: int = 0


def write_head(memory: bytearray | mmap) -> None:
    """Write the head of an empty record."""
    _HEAD.pack_into(memory, 0, _MAGIC, len(PHASES))


def words(memory: mmap) -> memoryview:
    """Return the words of the body. The caller releases the view before it closes the memory."""
    body = memoryview(memory)[_HEAD.size : _HEAD.size + _BODY.size]
    # Python converts an unsigned long in fewer instructions than a long long.
    return body.cast("L") if struct.calcsize("L") == 8 else body.cast("Q")


def write(memory: bytearray | mmap, values: Sequence[int]) -> None:
    """Write the whole body from its words; words that are missing at the end are 0."""
    _BODY.pack_into(memory, _HEAD.size, *values, *(0,) * (WORDS - len(values)))


def read(data: bytes, monotonic_ns: int, unix: float) -> SharedRecord | None:
    """Return the values of a record at the moment given by both clocks; None for an invalid or half-written record."""
    if len(data) < _HEAD.size:
        return None
    magic, count = _HEAD.unpack_from(data)
    body = struct.Struct(f"=5Q{count}Q4Q{count}Q") if count <= MAX_PHASES else None
    if magic != _MAGIC or body is None or len(data) < _HEAD.size + body.size:
        return None
    sequence, phase, since, steps, batches, *rest = body.unpack_from(data, _HEAD.size)
    spent, (sequence_copy, last, samples, tokens), waited = rest[:count], rest[count : count + 4], rest[count + 4 :]
    if sequence == 0 or sequence != sequence_copy or since > monotonic_ns:
        return None
    seconds = dict.fromkeys(PHASES, 0.0)
    for index, nanoseconds in enumerate(spent):
        seconds[_name(index)] += nanoseconds / 1e9
    lasting = (monotonic_ns - since) / 1e9
    seconds[_name(phase)] += lasting
    # The two clocks are not read at the same instant: rounding keeps the time of an unchanged phase constant.
    stepped = round(unix - (monotonic_ns - last) / 1e9, 2) if 0 < last <= monotonic_ns else None
    waits = {_name(index): nanoseconds / 1e9 for index, nanoseconds in enumerate(waited) if nanoseconds}
    since_unix = round(unix - lasting, 2)
    end = _HEAD.size + body.size
    thread = int.from_bytes(data[end : end + 8], sys.byteorder)
    return SharedRecord(_name(phase), since_unix, steps, batches, seconds, stepped, samples, tokens, waits, thread)


def _name(index: int) -> str:
    return PHASES[index] if index < len(PHASES) else "other"
