"""The tasks (processes and threads) that the cgroup of this process may still have: pids.max, TasksMax= of a unit."""

from __future__ import annotations

import math
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def free_tasks(own: Path = _OWN, mount: Path = _MOUNT) -> float:
    """Return how many more tasks are allowed; infinity without a limit, or where it cannot be read."""
    free = math.inf
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return free
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "pids" not in controllers.split(","):
            continue
        folder = mount / controllers / path[1:]
        try:
            limit, current = ((folder / name).read_text().strip() for name in ("pids.max", "pids.current"))
        except OSError:  # the root of the hierarchy has no limit
            continue
        if limit != "max":
            free = min(free, int(limit) - int(current))
    return free
