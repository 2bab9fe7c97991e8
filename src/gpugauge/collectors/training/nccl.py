"""What NCCL says of trainings, read in a thread: without the hook while their GPUs seem to wait, and what its plugin
Inspector writes of those with the hook.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Set
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpugauge.base.guard import Background
from gpugauge.base.logline import Condition
from gpugauge.metric import Metric, Table
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.verdict.network import Networks
from gpugauge.verdict.spins import Counted
from gpugauge.workload.inspector import Dump, Timing, dumps
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.ras import Launches, inquire

log = logging.getLogger("gpugauge.nccl")

_INTERVAL_SECONDS, _RANKS_PER_SECOND = 15.0, 32  # between two questions: all nodes of a large job ask
_SILENT_SECONDS = 60.0  # until a process of which nothing was said; a job that shares its port is asked by chance
_KEEP_SECONDS = 120.0  # for which an answer counts after the next one was due

_CURRENT_SECONDS = 90.0  # age of a file from which on it says nothing; Inspector writes one every 30 s or less often

_process = Table[Counted]("process", source="NCCL RAS")
_dump = Table[Dump]("process", source="NCCL Inspector")


NCCL: tuple[Metric, ...] = (
    _process.gauge(
        "training_nccl_collectives_behind",
        "Number of collectives by which the last rank in a communicator of the process has launched fewer than the "
        "first, as NCCL says, with its number there and its address, which are empty if none is behind. Absent unless "
        "NCCL was asked (verdict.enable_ras): while the GPUs of a training without the hook seem to wait.",
        lambda counted: {(counted.said.rank, counted.said.host): counted.said.behind},
        *("rank", "host"),
    ),
    _process.gauge(
        "training_nccl_missing_ranks",
        "Number of ranks in the communicators of the process that do not answer NCCL: unresponsive, or dead after a "
        "minute. Absent where training_nccl_collectives_behind is.",
        lambda counted: {"unresponsive": counted.said.unresponsive, "dead": counted.said.dead},
        "state",
    ),
)


def _largest(dump: Dump) -> dict[str, Timing]:
    """Return the figures of the largest messages by collective."""
    return {kind[0]: dump.timings[kind] for kind in sorted(dump.timings)}


INSPECTOR: tuple[Metric, ...] = (
    _dump.gauge(
        "training_nccl_bus_bandwidth_bytes",
        "Bus bandwidth of the process's collectives with the largest messages, in bytes per second, with the waits for "
        "the last rank: the network is as fast as the fastest rank of the training, or faster.",
        lambda dump: {name: timing.bandwidth for name, timing in _largest(dump).items()},
        "collective",
    ),
    _dump.gauge(
        "training_nccl_collective_seconds",
        "Mean duration of these collectives on the GPU, with the wait for the last rank.",
        lambda dump: {name: timing.seconds for name, timing in _largest(dump).items()},
        "collective",
    ),
)


class Inspector:
    """What NCCL Inspector writes to a `folder`. The file of a GPU is that of its owner's only process with tensors
    there. `slow` are the processes whose network is slow.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.slow, self._networks = set[str](), Networks()
        self._work = Background[tuple[dict[str, Dump], int]]("inspector")
        self._due, self._known, self._failing = 0.0, dict[str, Dump](), Condition(log)

    def read(self, node: Node) -> dict[str, Dump]:
        """Return the files of processes. No call waits for the folder."""
        users: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for process, session in node.sessions.items() if self.folder else ():
            allocated = training.by_uuid(session, lambda d: d.allocated).items() if session.connected else ()
            for uuid in (uuid for uuid, size in allocated if size):
                users[uuid, session.peer_uid].append(process)
        try:
            self._known, refused = self._work.take() or (self._known, 0)
        except OSError:
            self._known, refused = {}, 1
        if refused:
            self._failing.failing("files of NCCL Inspector cannot be used", folder=self.folder, files=refused)
        if self.folder and users and node.monotonic >= self._due and self._work.running is None:
            self._due = node.monotonic + _INTERVAL_SECONDS
            with suppress(RuntimeError):  # there is no thread
                since = node.timestamp - _CURRENT_SECONDS
                self._work.start(partial(dumps, self.folder, {uuid for uuid, _ in users}, since), 0.0)
        found: dict[str, tuple[str, Dump]] = {}
        for (uuid, uid), (process, *others) in users.items():
            dump, began = self._known.get(uuid), node.sessions[process].hello.started or 0.0
            current = dump and began <= dump.at and abs(node.timestamp - dump.at) <= _CURRENT_SECONDS
            if dump and current and not others and dump.uid == uid:
                found[process] = uuid, dump
        self.slow = self._networks.slow(node, found)
        return {process: dump for process, (_, dump) in found.items()}


class Asker:
    """Asks about suspects, one question at a time, and keeps what is said of each."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs, self._work = procfs, Background[dict[str, Launches]]("nccl")
        self._next: dict[str, float] = {}  # when to ask about a process
        self._known: dict[str, tuple[Counted, float]] = {}  # … and until when that counts

    def ask(self, node: Node, suspects: Set[str], now: float) -> dict[str, Counted]:
        """Return what is known of the suspects at a monotonic time. No call waits for an answer."""
        for process, said in (self._work.take() or {}).items():
            before, _ = self._known.get(process, (Counted(said, now), now))
            self._next[process] = due = now + _INTERVAL_SECONDS + said.size / _RANKS_PER_SECOND
            self._known[process] = before.then(said, now), due + _KEEP_SECONDS
        self._next = {process: due for process, due in self._next.items() if process in suspects}
        self._known = {p: known for p, known in self._known.items() if p in suspects and now < known[1]}
        wanted = [process for process in suspects & node.hosts.keys() if now >= self._next.get(process, now)]
        if wanted and self._work.running is None:
            self._next |= dict.fromkeys(wanted, now + _SILENT_SECONDS)
            with suppress(RuntimeError):  # there is no thread
                self._work.start(partial(inquire, self._procfs, wanted, dict(node.hosts)), 0.0)
        return {process: counted for process, (counted, _) in self._known.items()}
