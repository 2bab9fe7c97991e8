"""The collectives of this process, by the counters of torch's flight recorder, which cost microseconds. Its entries and
stacks are never read: that queries events of the device, which can block.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from gpugauge.hook.wrappers import attempt
from gpugauge.wire import messages as wire

# By backend, the function of the recorder: one for NCCL, and since torch 2.8 one for others. Both take whether to
# include the entries, and whether only active ones.
_DUMPS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}
_FORMAT = "2."  # version of what they return


def is_distributed() -> bool:
    """Return whether this process is one of several ranks, and may have a thread that answers."""
    distributed, wanted = torch.distributed, os.environ.get(wire.ANSWERS_VARIABLE) != "0"
    return wanted and distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def groups(*backends: str) -> tuple[wire.Group, ...]:
    """Return the process groups with the most collectives, of these backends or of all; none if the recorder is off or
    an unknown one.
    """
    none: list[wire.Group] = []
    found = [group for name in backends or _DUMPS for group in attempt(none, _groups, name, _DUMPS[name])]
    return tuple(sorted(found, key=lambda group: -group.enqueued)[: wire.MAX_GROUPS])


def in_flight(found: tuple[wire.Group, ...]) -> bool:
    """Return whether a collective of these groups has not completed."""
    return any(group.enqueued > group.completed for group in found)


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
