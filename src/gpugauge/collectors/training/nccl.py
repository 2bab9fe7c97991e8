"""What NCCL says of trainings without the hook whose GPUs seem to wait, asked in a thread."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from functools import partial

from gpugauge.base.background import Background
from gpugauge.metric import Metric, Table
from gpugauge.node.node import Node
from gpugauge.verdict.spins import Counted
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.ras import Launches, inquire

_INTERVAL_SECONDS, _RANKS_PER_SECOND = 15.0, 32  # between two questions: all nodes of a large job ask
_SILENT_SECONDS = 60.0  # until a process of which nothing was said; a job that shares its port is asked by chance
_KEEP_SECONDS = 120.0  # for which an answer counts after the next one was due

_process = Table[Counted]("process", source="NCCL RAS")


def _behind(counted: Counted) -> dict[tuple[str, ...], int]:
    return {(counted.said.rank, counted.said.host): counted.said.behind}


NCCL: tuple[Metric, ...] = (
    _process.gauge(
        "training_nccl_collectives_behind",
        "Number of collectives by which the last rank in a communicator of the process has launched fewer than the "
        "first, as NCCL says, with its number there and its address, which are empty if none is behind. Absent unless "
        "NCCL was asked (verdict.enable_ras): while the GPUs of a training without the hook seem to wait.",
        _behind,
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
