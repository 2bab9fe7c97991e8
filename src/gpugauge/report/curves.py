"""A job over time: the GPUs that it held and lost, their memory and their power."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpugauge.exposition.trainings import ENERGY, HELD, LOST, MEMORY
from gpugauge.report.counters import Rise, binned
from gpugauge.report.jobs import Found
from gpugauge.report.model import Curves

_MOST_BINS, _LEAST_CHANGES = 96, 6.0  # of a counter in a bin: fewer show when it was read rather than what it counts


def drawn(found: Found, begin: float, end: float) -> Curves:
    """Return the curves of all processes together."""
    lost: defaultdict[str, list[Rise]] = defaultdict(list)
    held: list[Rise] = []
    lives = found.facts.values()
    for facts in lives:
        held += facts.rises(HELD).get("", [])
        for cause, rises in facts.rises(LOST).items():
            lost[cause] += rises
    changes = (end - begin) * sum(rise.amount > 0 for rise in held) / sum(facts.end - facts.begin for facts in lives)
    count = max(1, min(_MOST_BINS, int(changes / _LEAST_CHANGES)))
    width = (end - begin) / count

    def mean(rises: Iterable[Rise]) -> list[float]:
        return [amount / width for amount in binned(rises, begin, width, count)]

    causes = {cause: mean(rises) for cause, rises in lost.items() if sum(rise.amount for rise in rises)}
    edges = [(begin + at * width, begin + (at + 1) * width) for at in range(count)]
    memory, sizes = zip(*(_memory(found, (a + b) / 2) for a, b in edges), strict=True)
    gpus = mean(held)
    # As if a process held the same GPUs all the time.
    most = mean(Rise(f.begin, f.end, (f.sum(HELD) or 0.0) * max(1.0, (f.end - f.begin) / f.seconds)) for f in lives)
    _level([gpus, *causes.values()], most)
    places = {place for process in found.facts for place in found.of(process)}
    limit = sum(found.devices[place].watts or 0.0 for place in places) or None
    return Curves(begin, width, gpus, causes, memory, max(sizes) or None, _watts(found, edges), limit)


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


def _memory(found: Found, middle: float) -> tuple[float | None, float]:
    """Return the memory in the middle of a time, where a sample is the last one of a window, and what the GPUs have."""
    alive = [process for process, facts in found.facts.items() if facts.begin <= middle <= facts.end]
    known = [
        points[at][1]
        for process in alive
        for points in found.facts[process].of(MEMORY).values()
        if (at := bisect_left(points, (middle,))) < len(points)
    ]
    places = {place for process in alive for place in found.of(process)}
    return sum(known) if known else None, sum(found.devices[place].memory or 0.0 for place in places)


def _watts(found: Found, edges: Sequence[tuple[float, float]]) -> list[float | None]:
    """Return the power, as even as the samples allow: each has what was read last before it, so a counter may stand
    still for a scrape, and what the next ones have may be used already.
    """
    watts: list[list[float]] = [[] for _ in edges]
    places = {process: found.of(process) for process in found.facts}
    for place in {place for held in places.values() for place in held}:
        device, lives = found.devices[place], [found.facts[process] for process in places if place in places[process]]
        rose = [rise for rise in device.counters.get(ENERGY, ()) if rise.amount > 0 and rise.end > rise.begin]
        used = [
            (of, a, b, joules)
            for of, (begin, end) in zip(watts, edges, strict=True)
            if rose and any(facts.begin < end and facts.end > begin for facts in lives)
            if (a := max(begin, rose[0].begin)) < (b := min(end, rose[-1].end))
            if (joules := device.joules(a, b, found.facts)) is not None
        ]
        mean = sum(joules for *_, joules in used) / (sum(b - a for _, a, b, _ in used) or 1.0)
        for of, a, b, joules in used:
            first, last = (bisect_left(rose, (moment,)) for moment in (a, b))
            less, more = (max(rise.amount for rise in rose[max(0, at - 1) : at + 1]) for at in (first, last))
            of.append(sorted((joules - less, mean * (b - a), joules + more))[1] / (b - a))
    return [sum(of) if of else None for of in watts]
