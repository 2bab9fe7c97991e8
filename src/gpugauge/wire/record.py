"""The page of shared memory in which a training process tells where it is, so that it still does when it is blocked.

The process hands one sealed memfd over with its first message and writes the page at the boundaries of its phases; the
daemon reads it with pread, which can neither wait nor fail by what the process does. Times in it are CLOCK_MONOTONIC,
the same for all processes of a machine. Runs on Python 3.9 with the standard library only: a training process loads it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap

PAGE_BYTES = 4096

# A later minor version may append to this: what a reader does not know is "other" to it.
PHASES = ("other", "starting", "training", "evaluating", "checkpointing", "compiling", "loading", "generating")

# Magic, number of phases; then words of eight bytes: sequence, phase, since, steps, batches, nanoseconds in each phase
# before `since`, and the sequence again: a reader that finds two different ones has come in between.
_MAGIC = b"gpg1"
_HEAD = struct.Struct("=4sI")
_BODY = struct.Struct(f"=5Q{len(PHASES)}QQ")
_MOST_PHASES = 64

# Which word is what, for a writer that changes only some: the sequence first, and again at the end.
SEQUENCE, PHASE, SINCE, _STEPS, _BATCHES, SPENT = range(6)
AGAIN = SPENT + len(PHASES)


@dataclass(frozen=True)
class Page:
    """What a page says: the phase, Unix time since when, seconds in each phase until now; steps and batches are those
    of the last message.
    """

    phase: str
    since: float
    steps: int
    batches: int
    seconds: Mapping[str, float]


def write_head(memory: bytearray | mmap) -> None:
    """Mark an empty page as ours."""
    _HEAD.pack_into(memory, 0, _MAGIC, len(PHASES))


def words(memory: mmap) -> memoryview:
    """Return what follows the head, word by word; to be released before the memory is closed."""
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
    """Write the state of a process; about a microsecond. `phase` is an index into PHASES, times are nanoseconds."""
    _BODY.pack_into(memory, _HEAD.size, sequence, phase, since, steps, batches, *nanoseconds, sequence)


def read(data: bytes, monotonic_ns: int, unix: float) -> Page | None:
    """Return what a page says at this moment, given by both clocks; None for one that makes no sense now."""
    if len(data) < _HEAD.size:
        return None
    magic, count = _HEAD.unpack_from(data)
    body = struct.Struct(f"=5Q{count}QQ") if count <= _MOST_PHASES else None
    if magic != _MAGIC or body is None or len(data) < _HEAD.size + body.size:
        return None
    sequence, phase, since, steps, batches, *nanoseconds, again = body.unpack_from(data, _HEAD.size)
    if sequence == 0 or sequence != again or since > monotonic_ns:
        return None
    seconds = dict.fromkeys(PHASES, 0.0)
    for index, spent in enumerate(nanoseconds):
        seconds[_name(index)] += spent / 1e9
    lasting = (monotonic_ns - since) / 1e9
    seconds[_name(phase)] += lasting
    # Two clocks are never read at once: rounded, the time of an unchanged phase does not tremble.
    return Page(_name(phase), round(unix - lasting, 2), steps, batches, seconds)


def _name(index: int) -> str:
    return PHASES[index] if index < len(PHASES) else "other"
