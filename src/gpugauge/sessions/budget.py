"""The budget of series of a user, a cgroup and the node. A session over it loses its details, then all series; none
displaces an older one.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gpugauge.wire import messages as wire

# Series of one session without details, with those of its verdict; tests/sessions/test_budget.py counts them.
PLAIN_SERIES = 86
_BY_DEVICE, _BY_PARAMETERS, _BY_PHASE, _BY_GROUP, _OF_LOADER = 10, 2, 3, 3, 30
_RETURN_SHARE = 0.9  # of a limit: what was cut returns below it
_FEW_SHARE = 1 / 16  # of the limit in all

WHOLE, PLAIN, NOTHING = "whole", "plain", "nothing"
LIMITS = ("user", "cgroup", "all")


class Place(NamedTuple):
    """What is exported of a session, its series, and the limit that the rest is over, "" without one."""

    level: str
    series: int
    limit: str = ""


def series_of(snap: wire.Snap | None, phases: int = 0) -> int:
    """Return the most series that a session with this message can have, if its thread was seen in so many phases."""
    if snap is None:
        return PLAIN_SERIES
    parameters = len(snap.parameters) + len(snap.optimizer_state)
    loader = _OF_LOADER if snap.loader else 0
    details = loader + _BY_DEVICE * len(snap.devices) + _BY_PARAMETERS * parameters + _BY_PHASE * phases
    return PLAIN_SERIES + details + _BY_GROUP * len(snap.groups)


class Budget:
    """The places of the sessions, by name."""

    def __init__(self, series: int = 100_000, series_by_owner: int = 88_000) -> None:
        self._limits = {"user": series_by_owner, "cgroup": series_by_owner, "all": series}
        self._used: Counter[tuple[str, str]] = Counter()
        self._places: dict[str, Place] = {}
        self._groups: dict[str, list[tuple[str, str]]] = {}

    def place(self, name: str, uid: int, cgroup: str, wanted: int) -> Place:
        """Return the place of a session that would have `wanted` series."""
        known = self._places.get(name)
        owners = [("user", str(uid)), ("cgroup", cgroup), ("all", "all")]
        groups = self._groups.setdefault(name, [group for group in owners if group[1]])
        held = known.series if known else 0
        found = Place(NOTHING, 0)
        over = ""
        for level, series in ((WHOLE, wanted), (PLAIN, PLAIN_SERIES), (NOTHING, 0)):
            share = _RETURN_SHARE if known and known.limit else 1.0
            more = series - held
            full = [g for g in groups if more > 0 and self._used[g] + more > share * self._limit(g, groups)]
            if not full:
                found = Place(level, series, over)
                break
            over = over or full[0][0]
        self._places[name] = found
        self._used.update(dict.fromkeys(groups, found.series - held))
        return found

    def _limit(self, group: tuple[str, str], groups: list[tuple[str, str]]) -> int:
        """Return the limit of a group for a session of `groups`. Users with few series have room of their own."""
        limit = self._limits[group[0]]
        few = max(self._used[own] for own in groups if own[0] != "all") < limit * _FEW_SHARE
        return 2 * limit if group[0] == "all" and few else limit

    def limit(self, name: str) -> str:
        """Return the limit that a session is over, "" without one."""
        place = self._places.get(name)
        return place.limit if place else ""

    def release(self, name: str) -> None:
        """Give the place of a session back."""
        place, groups = self._places.pop(name, None), self._groups.pop(name, [])
        if place is not None:
            self._used.update(dict.fromkeys(groups, -place.series))
            self._used += Counter()  # drops zero counts
