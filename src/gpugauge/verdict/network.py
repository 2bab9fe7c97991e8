"""Trainings whose collectives are slow although no rank is late, by the figures of NCCL Inspector.

The kernel of a collective also waits for the last rank, which itself waits for none. Of eight ranks, one is the last in
an eighth of the collectives or more. If the network was over four times as fast as all of them seem, the durations of
this one would differ so much that their mean was more than 1.1 times their geometric mean, which the bandwidth has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpugauge.base.text import whole
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.workload.inspector import Dump, Kind

_MOST_RANKS = 8
_LARGE = 16 << 20  # bytes
_LEAST_VARIED, _MOST_VARIED = 0.99, 1.1  # less is no mean
_OF_BEST = 1 / 8  # of what the same ranks reached before
_OF_LINKS = 1 / 64  # of the NVLinks of a GPU: less than PCIe, where they do not connect all GPUs
_MOST_KINDS = 512


class Networks:
    """Remembers what the collectives of the trainings on this node reached."""

    def __init__(self) -> None:
        self._best: dict[frozenset[str], dict[Kind, list[float]]] = {}  # the second and the highest bandwidth, by ranks

    def slow(self, node: Node, dumps: Mapping[str, tuple[str, Dump]]) -> set[str]:
        """Return the processes of trainings on this node alone whose network is slow, by GPU and file of processes."""
        runs: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        for process, session in node.sessions.items():
            if session.connected and (run := training.run(session)):
                runs[run].add(process)
        self._best = {ranks: best for ranks, best in self._best.items() if ranks <= node.sessions.keys()}
        slow = set[str]()
        for run, ranks in runs.items():
            if len(ranks) == whole(run[-1]) and len(ranks) <= _MOST_RANKS and ranks <= dumps.keys():
                best, links = (
                    self._best.setdefault(frozenset(ranks), {}),
                    min(_links(node, dumps[rank][0]) for rank in ranks),
                )
                slow |= ranks if _is_slow([dumps[rank][1] for rank in ranks], links, best) else set()
        return slow


def _is_slow(dumps: Sequence[Dump], links: float, best: dict[Kind, list[float]]) -> bool:
    """Return whether all large collectives are slow, and remember what they reached."""
    slow = []
    for kind in set.intersection(*(set(dump.timings) for dump in dumps)):
        bandwidths, _, varied = zip(*(dump.timings[kind] for dump in dumps), strict=True)
        if kind[1] >= _LARGE and all(varied):
            second, first = best.get(kind, (0.0, 0.0))  # the second shows that the first is no accident
            steady = min(varied) >= _LEAST_VARIED and max(varied) <= _MOST_VARIED
            slow.append(steady and max(bandwidths) < max(_OF_BEST * second, _OF_LINKS * links))
            if kind in best or len(best) < _MOST_KINDS:
                best[kind] = sorted({second, first, max(bandwidths)})[-2:]  # the same file is read twice
    return bool(slow) and all(slow)


def _links(node: Node, uuid: str) -> float:
    """Return the bytes per second of the NVLinks of a GPU that are up, in one direction."""
    active, speeds = node.reading(uuid).nvlink_active or {}, node.reading(uuid).nvlink_speed_megabytes_per_second or {}
    return sum(1e6 * speed for link, speed in speeds.items() if active.get(link))
