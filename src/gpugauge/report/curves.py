"""A job over time: the GPUs that it held and lost, their memory and their power."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpugauge.exposition.trainings import HELD, LOST, MEMORY
from gpugauge.report.counters import Rise, binned
from gpugauge.report.jobs import Found
from gpugauge.report.model import Curves

_BINS = 96


def drawn(found: Found, begin: float, end: float) -> Curves:
    """Return the curves of all processes together."""
    width = (end - begin) / _BINS

    def mean(rises: Iterable[Rise]) -> list[float]:
        return [amount / width for amount in binned(rises, begin, width, _BINS)]

    lost: defaultdict[str, list[Rise]] = defaultdict(list)
    held: list[Rise] = []
    for facts in found.facts.values():
        held += facts.rises(HELD).get("", [])
        for cause, rises in facts.rises(LOST).items():
            lost[cause] += rises
    causes = {cause: mean(rises) for cause, rises in lost.items() if sum(rise.amount for rise in rises)}
    edges = [(begin + at * width, begin + (at + 1) * width) for at in range(_BINS)]
    memory, watts = [_memory(found, *each) for each in edges], [_watts(found, *each) for each in edges]
    gpus = mean(held)
    # As if a process held the same GPUs all the time.
    evenly = [(facts, max(1.0, (facts.end - facts.begin) / facts.seconds)) for facts in found.facts.values()]
    most = mean(Rise(facts.begin, facts.end, (facts.sum(HELD) or 0.0) * longer) for facts, longer in evenly)
    _level([gpus, *causes.values()], most)
    return Curves(begin, width, gpus, causes, memory, watts)


def _level(layers: Sequence[list[float]], most: Sequence[float]) -> None:
    """Move what is more than there were GPUs to the time before, or else after: a sample is one of the tick before it,
    and the first one has all that came before it. The first layer has what was held.
    """
    count = len(most)
    for at, to in [*((at, at - 1) for at in range(count - 1, 0, -1)), *((at, at + 1) for at in range(count - 1))]:
        share = max(0.0, 1 - most[at] / layers[0][at]) if layers[0][at] else 0.0
        for values in layers:
            values[to] += share * values[at]
            values[at] *= 1 - share


def _memory(found: Found, begin: float, end: float) -> float | None:
    """Return the memory in the middle of a time; a sample is the last one of a window that ends with it."""
    middle = (begin + end) / 2
    alive = (facts.of(MEMORY) for facts in found.facts.values() if facts.begin <= middle <= facts.end)
    known = [
        points[at][1]
        for held in alive
        for points in held.values()
        if (at := bisect_left(points, (middle,))) < len(points)
    ]
    return sum(known) if known else None


def _watts(found: Found, begin: float, end: float) -> float | None:
    known = []
    for process, facts in found.facts.items():
        a, b = max(facts.begin, begin), min(facts.end, end)
        for place in found.of(process) if b > a else ():
            joules = found.devices[place].joules(a, b, found.facts)
            known += [] if joules is None else [joules / (b - a)]
    return sum(known) if known else None
