"""The reasons by which trainings ended: gpugauge_trainings_ended_total has no label of the process, so the totals of a
crowd are compared with what its programs planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qa.strangers.compare import TICK, Statement, right


@dataclass(frozen=True)
class Ended:
    """The planned end of a process. It need not be counted if it is not `certain`."""

    name: str
    time: float
    reasons: tuple[str, ...]
    certain: bool


def ends(planned: Iterable[Ended], counted: list[tuple[float, dict[str, int]]]) -> Iterator[Statement]:
    """Yield for each reason whether as many trainings ended by it as planned; with those that may be the wrong ones."""
    all_planned = list(planned)
    certain = Counter(end.reasons[0] for end in all_planned if end.certain and len(end.reasons) == 1)
    possible = Counter(reason for end in all_planned for reason in end.reasons)
    reported = Counter(counted[-1][1])
    suspects = list(_unexplained(all_planned, counted))
    for reason in sorted({*reported, *possible}):
        low, high, count = certain[reason], possible[reason], reported[reason]
        text = "; ".join([str(count), *(suspect for suspect in suspects if suspect.startswith(reason))])
        yield right(f"ended: {reason}", f"{low} to {high}", text, low <= count <= high)


def _unexplained(planned: list[Ended], counted: list[tuple[float, dict[str, int]]]) -> Iterator[str]:
    """Yield the ends that were counted when no program ended by that reason, with the programs that ended then."""
    left = sorted(planned, key=lambda end: end.time)
    previous: Counter[str] = Counter(counted[0][1])
    for time, now in counted[1:]:
        near = [end for end in left if time - 2 * TICK < end.time < time + TICK]
        for reason in (Counter(now) - previous).elements():
            found = next((end for end in near if reason in end.reasons and end in left), None)
            if found is None:
                yield f"{reason}: one of {', '.join(end.name for end in near)}"
            else:
                left.remove(found)
        previous = Counter(now)
