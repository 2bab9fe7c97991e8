"""Answers to the daemon's questions: where the training thread is, and for which ranks it waits.

A thread of a distributed program sleeps in the kernel until the daemon asks, which it does while there is no progress.
It reads the stack with Python's lock held: only then is the stack of another thread sure not to change. A thread that
waits in a collective, in a loader, in a lock or for storage has released the lock. Without it there is no answer, and
the daemon reports that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType

import torch

from gpugauge.hook.collectives import groups, in_flight
from gpugauge.wire import messages as wire

_HOOK, _TORCH, _PYTHON = (f"{Path(str(file)).parent}/" for file in (__file__, torch.__file__, os.__file__))
_COLLECTIVES = f"{_TORCH}distributed/"
_BACKWARD = "_engine_run_backward"
_SITE = ("site-packages/", "dist-packages/")
_WRAPPERS = frozenset({"wrapper", "wait"})  # around the functions of torch.distributed
# The functions of torch that block while others do not come, by the names of their wrappers in the hook.
_WAITS = frozenset({"wait", "wait_tensor", "monitored_barrier", "_broadcast_coalesced", "_rebuild_buckets"})


def answer(session: str, sequence: int, thread: int) -> wire.Answer:
    """Return the answer about a thread of this process."""
    every = list(_frames(sys._current_frames().get(thread)))  # noqa: SLF001 - documented
    frames = [frame for frame in every if not frame.f_code.co_filename.startswith(_HOOK)]
    held = every[0].f_code.co_name in _WAITS if every[:1] != frames[:1] else False
    inner = takewhile(lambda code: code.co_filename.startswith(_TORCH), (frame.f_code for frame in frames))
    shown, waits_in, found = tuple(map(_shown, frames[: wire.MAX_FRAMES][::-1])), _waits_in(list(inner), held), groups()
    if waits_in == _BACKWARD and found and not in_flight(found):
        waits_in = None  # it computes
    elif waits_in == "wait" and in_flight(found):
        waits_in = "collective"  # not for one other rank: the recorder counts no sends and receives
    elif waits_in is None and in_flight(groups("nccl")):
        waits_in = "collective"  # on the device. With gloo the thread waits, and late counts are no evidence
    return wire.Answer(session, sequence, "backward" if waits_in == _BACKWARD else waits_in, shown, found)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_in(codes: list[CodeType], held: bool) -> str | None:
    """Return the name of the function that waits for other ranks, by the innermost frames, which are of torch. `held`
    is whether such a wait is known to be the innermost call.
    """
    if codes and codes[0].co_name == _BACKWARD:
        return _BACKWARD
    if not held and not (codes and codes[0].co_filename.startswith(_COLLECTIVES)):
        return None
    names = (code.co_name for code in codes if code.co_filename.startswith(_COLLECTIVES))
    return next((wire.clean(name) for name in names if name not in _WRAPPERS), "wait")


def _shown(frame: FrameType) -> wire.Frame:
    file, code = frame.f_code.co_filename, frame.f_code
    own = not (file.startswith((_TORCH, "<frozen")) or (file.startswith(_PYTHON) and not any(s in file for s in _SITE)))
    for folder in _SITE:
        file = file.rpartition(folder)[2]
    file = file if len(file) <= wire.MAX_TEXT_CHARACTERS else f"…{file[1 - wire.MAX_TEXT_CHARACTERS :]}"
    return wire.Frame(wire.clean(file) or "?", frame.f_lineno or 0, wire.clean(code.co_name) or "?", int(own))
