"""Files of NCCL Inspector, a profiler plugin of NCCL: how long the collectives of the last interval took on a GPU.
Users own them, and they are truncated and written again in place.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_FILE = re.compile(r"nccl_inspector_metrics_(?:GPU-)?([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})\.prom", re.IGNORECASE)
_MAX_NAMES, _MAX_BYTES, _MAX_KINDS = 4096, 512 << 10, 512
_LEAST_UNITS = 8  # of a size, to know how much its duration varies
# Both figures are written at once. Before the last labels, which are the plugin's, is text of the program, not escaped.
# A size that is no range is of the plugin's first version: it has the last collective only, and no means.
_BOTH = re.compile(
    rb'^nccl_bus_bandwidth_gbs\{([^\n]{0,1100},n_nodes="\d{1,7}",nranks="(\d{1,7})",'
    rb'collective="(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)",'
    rb'message_size="(\d{1,4})-\d{1,4}([KMGT]?)B",algo_proto="\w{0,40}")\} ([\d.e+-]{1,24})\n'
    rb"nccl_collective_exec_time_microseconds\{\1\} ([\d.e+-]{1,24})\n",
    re.MULTILINE,
)
Kind = tuple[str, int, int]  # a collective, its size in bytes, rounded down, a hash of communicator and algorithm


class Timing(NamedTuple):
    """The geometric mean of the bus bandwidth in bytes per second, and the mean duration in seconds: both contain the
    wait for the last rank. `varied` is the latter by the geometric mean of the durations or a little more; 0: unknown.
    """

    bandwidth: float
    seconds: float
    varied: float


class Dump(NamedTuple):
    """The content of a file, its owner, and the Unix time at which it was written."""

    uid: int
    at: float
    timings: dict[Kind, Timing]


def dumps(folder: Path, uuids: Collection[str], since: float) -> tuple[dict[str, Dump], int]:
    """Return the files of these GPUs that were written since a Unix time, by uuid, and the number of those that cannot
    be used: unreadable, no regular file, too large, two of one GPU. Raises OSError if the folder cannot be listed.
    """
    known = {uuid.lower().removeprefix("gpu-"): uuid for uuid in uuids}
    with os.scandir(folder) as entries:
        matches = ((_FILE.fullmatch(entry.name), entry.path) for entry in islice(entries, _MAX_NAMES))
        paths = [(known[match[1].lower()], path) for match, path in matches if match and match[1].lower() in known]
    read = [(uuid, _read(path, since)) for uuid, path in paths]
    fresh = [(uuid, dump) for uuid, dump in read if dump is None or dump.at >= since]
    files = Counter(uuid for uuid, _ in fresh)
    found = {uuid: dump for uuid, dump in fresh if dump and files[uuid] == 1}
    return found, len(fresh) - len(found)


def _read(path: str, since: float) -> Dump | None:
    """Return a file, of an older one only the time."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES:
                content = file.read(_MAX_BYTES) if status.st_mtime >= since else b""
                return Dump(status.st_uid, status.st_mtime, _timings(content))
    return None


def _timings(content: bytes) -> dict[Kind, Timing]:
    """Return what whole lines say."""
    found: dict[Kind, Timing] = {}
    for match in islice(_BOTH.finditer(content), _MAX_KINDS):
        labels, ranks, name, units, prefix, *texts = match.groups()
        with suppress(ValueError):
            number, size = int(ranks), int(units) << 10 * (b"KMGT".find(prefix or b"?") + 1)
            bandwidth, seconds = float(texts[0]) * 1e9, float(texts[1]) * 1e-6
            factors = {b"AllReduce": 2 * (number - 1) / max(1, number), b"Broadcast": 1, b"Reduce": 1}
            traffic = size * factors.get(name, number - 1)  # to which the bandwidth refers
            if traffic > 0 and 0 < bandwidth < math.inf and 0 < seconds < math.inf:
                varied = bandwidth * seconds / traffic if int(units) >= _LEAST_UNITS else 0.0
                among = hash(labels.partition(b",comm_name=")[2])
                found[name.decode(), size, among] = Timing(bandwidth, seconds, varied)
    return found
