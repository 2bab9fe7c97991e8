"""The ranks that hold the others of their job up, by what each has answered while none makes progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpugauge.sessions.inquiry import WAITING

FOR_ONE = ("send", "recv", "wait")  # functions that may wait for one other rank only
SLOW_ABOVE = 1.25  # by default, of the work of the median rank
LEAST_WORK = 0.4  # share of the time as which a smaller median counts: longer work costs the others little
LEAST_SHOWN = 0.01  # of its time: a smaller share is known too badly to be divided by
Position = tuple[str, str]  # a position of sessions.inquiry, and the function of torch in which it waits


def behind(positions: Mapping[str, Position]) -> frozenset[str]:
    """Return the ranks, of those of one job, for which most others wait: those that wait for none, or have
    ended; where all wait, the few that do so in another collective than most. None if the answers do not decide.
    """
    waiting = {rank: function for rank, (position, function) in positions.items() if position == WAITING}
    others = positions.keys() - waiting.keys()
    if not others:
        collective = {rank: function for rank, function in waiting.items() if function not in FOR_ONE}
        function, most = max(Counter(collective.values()).items(), key=lambda each: each[1], default=("", 0))
        few = {rank for rank, other in collective.items() if other != function}
        return frozenset(few if most > len(few) else ())
    return frozenset(others if len(others) <= len(waiting) else ())


def slow(works: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as long as the median rank, or as the other of two, each slow one works, by the shares of
    their time.
    """
    ordered = sorted(works.values())
    middle = ordered[max(0, len(ordered) - 1) // 2 : len(ordered) // 2 + 1] or [1.0]
    # The module `statistics` would cost the daemon 3 MB.
    usual = middle[0] if len(ordered) == 2 else sum(middle) / len(middle)
    least = max(usual, LEAST_WORK)
    return {rank: work / max(usual, LEAST_SHOWN) for rank, work in works.items() if work > SLOW_ABOVE * least}
