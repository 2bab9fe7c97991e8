"""Answers to the daemon's questions: where the training thread is, and for which ranks it waits. The collectives of
this process are known by the counters of torch's flight recorder, which cost microseconds. Its entries and stacks are
never read: that queries events of the device, which can block.

A thread of a distributed program sleeps in the kernel until the daemon asks, which it does while there is no progress.
It reads the stack with Python's lock held: only then is the stack of another thread sure not to change. A thread that
waits in a collective, in a loader, in a lock or for storage has released the lock. Without it there is no answer, and
the daemon reports that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from gpugauge.hook.wrappers import attempt
from gpugauge.wire import messages as wire

_HOOK, _TORCH, _PYTHON = (f"{Path(str(file)).parent}/" for file in (__file__, torch.__file__, os.__file__))
_COLLECTIVES = f"{_TORCH}distributed/"
_BACKWARD = "_engine_run_backward"
_SITE = ("site-packages/", "dist-packages/")
_WRAPPERS = frozenset({"wrapper", "wait"})  # around the functions of torch.distributed
# The functions of torch that block while others do not come, by the names of their wrappers in the hook.
_WAITS = frozenset({"wait", "wait_tensor", "monitored_barrier", "_broadcast_coalesced", "_rebuild_buckets"})


def _in_flight(found: tuple[wire.Group, ...]) -> bool:
    """Return whether a collective of these groups has not completed."""
    return any(group.enqueued > group.completed for group in found)


def answer(session: str, sequence: int, thread: int) -> wire.Answer:
    """Return the answer about a thread of this process."""
    every = list(_frames(sys._current_frames().get(thread)))  # noqa: SLF001 - documented
    frames = [frame for frame in every if not frame.f_code.co_filename.startswith(_HOOK)]
    held = every[0].f_code.co_name in _WAITS if every[:1] != frames[:1] else False
    inner = takewhile(lambda code: code.co_filename.startswith(_TORCH), (frame.f_code for frame in frames))
    shown, waits_in, found = tuple(map(_shown, frames[: wire.MAX_FRAMES][::-1])), _waits_in(list(inner), held), groups()
    if waits_in == _BACKWARD and found and not _in_flight(found):
        waits_in = None  # it computes
    elif waits_in == "wait" and _in_flight(found):
        waits_in = "collective"  # not for one other rank: the recorder counts no sends and receives
    elif waits_in is None and _in_flight(groups("nccl")):
        waits_in = "collective"  # on the device. With gloo the thread waits, and late counts are no evidence
    return wire.Answer(session, sequence, "backward" if waits_in == _BACKWARD else waits_in, shown, found)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_in(codes: list[CodeType], held: bool) -> str | None:
    """Return the function that waits for other ranks, by the innermost frames. `held`: it is the innermost one."""
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


# By backend, the function of the recorder: one for NCCL, and since torch 2.8 one for others. Both take whether to
# include the entries, and whether only active ones.
_DUMPS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}
_FORMAT = "2."  # version of what they return


def is_distributed() -> bool:
    """Return whether this process is one of several ranks, and may have a thread that answers."""
    distributed, wanted = torch.distributed, os.environ.get(wire.ANSWERS_VARIABLE) != "0"
    return wanted and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def groups(*backends: str) -> tuple[wire.Group, ...]:
    """Return the process groups with the most collectives, of these backends or of all; none without a recorder."""
    none: list[wire.Group] = []
    found = [group for name in backends or _DUMPS for group in attempt(none, _groups, name, _DUMPS[name])]
    return tuple(sorted(found, key=lambda group: -group.enqueued)[: wire.MAX_GROUPS])


def _groups(backend: str, name: str) -> list[wire.Group]:
    read = getattr(torch._C._distributed_c10d, name, None)  # noqa: SLF001 - there is no public name
    if backend == "nccl" and torch.version.hip:
        return []  # this build also asks each communicator, and waits for it
    found: dict[str, Any] = json.loads(read(False, False)) if read else {}
    if not str(found.get("version")).startswith(_FORMAT):
        return []
    world = torch.distributed.distributed_c10d._world  # noqa: SLF001 - likewise
    # The recorder numbers the groups of a backend in the order of their creation.
    made = [group for group in world.pg_map if backend in world.pg_backend_config.get(group, backend)]
    status = {int(number): each for number, each in found.get("pg_status", {}).items()}
    if max(status, default=-1) >= len(made):
        return []  # groups were destroyed: the numbers are not known
    return [
        wire.Group(
            name=wire.clean(str(world.pg_names[made[number]])) or "?",
            kind=wire.clean(getattr(made[number], "group_desc", "")) or "?",
            size=made[number].size(),
            enqueued=max(0, int(each["last_enqueued_collective"])),
            completed=max(0, int(each["last_completed_collective"])),
        )
        for number, each in status.items()
    ]
