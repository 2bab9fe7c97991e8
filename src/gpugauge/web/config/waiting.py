"""Logins that wait for verification. Addresses from which wrong passwords came wait behind the others."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from gpugauge.web.prefixes import sender, site

# Waiting logins in all, and of one prefix.
MAX_WAITING = 16
MAX_WAITING_PER_PREFIX = 2
# A fault is forgiven after this time. More of them are not counted than an hour forgives.
_FORGIVEN_SECONDS = 600.0
_MAX_FAULTS = 6.0
_MAX_REMEMBERED = 4096

Item = TypeVar("Item")


class _Rank(NamedTuple):
    """What decides who is first; the lowest rank is."""

    faults: float
    faults_of_site: float
    ordinal: int
    """How many others of the same prefix were waiting before."""


@dataclass(eq=False)
class _Waiting(Generic[Item]):
    item: Item
    remote: str
    rank: _Rank


class WaitingLogins(Generic[Item]):
    """Waiting items by client address: those without faults first, then by chance, so that haste gains nothing."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.SystemRandom()
        self._waiting: list[_Waiting[Item]] = []
        self._senders, self._sites = _Faults(), _Faults()

    def put(self, item: Item, remote: str, now: float) -> Item | None:
        """Add an item. Returns the one that leaves if there are too many, which may be the new one."""
        name = sender(remote)
        own = [waiting for waiting in self._waiting if sender(waiting.remote) == name]
        new = _Waiting(item, remote, self._rank(remote, len(own), now))
        self._waiting.append(new)
        if len(own) >= MAX_WAITING_PER_PREFIX:
            leaving = self._chance.choice([*own, new])
        elif len(self._waiting) > MAX_WAITING:
            leaving = self._any(max(waiting.rank for waiting in self._waiting))
        else:
            return None
        self._waiting.remove(leaving)
        return leaving.item

    def take(self, now: float, *, without_faults: bool = False) -> tuple[Item, str] | None:
        """Remove and return the next item and its address, or None; on request only of an address without faults."""
        if without_faults and all(waiting.rank[:2] > (0, 0) for waiting in self._waiting):
            return None  # without computing the ranks for each wrong password that comes
        for waiting in self._waiting:
            waiting.rank = self._rank(waiting.remote, waiting.rank.ordinal, now)
        first = min((waiting.rank for waiting in self._waiting), default=None)
        if first is None or (without_faults and (first.faults or first.faults_of_site)):
            return None
        taken = self._any(first)
        self._waiting.remove(taken)
        return taken.item, taken.remote

    def fault(self, remote: str, now: float) -> None:
        """Record a wrong password from an address."""
        self._senders.add(sender(remote), now)
        self._sites.add(site(remote), now)

    def _rank(self, remote: str, ordinal: int, now: float) -> _Rank:
        return _Rank(self._senders.count(sender(remote), now), self._sites.count(site(remote), now), ordinal)

    def _any(self, rank: _Rank) -> _Waiting[Item]:
        return self._chance.choice([waiting for waiting in self._waiting if waiting.rank == rank])


class _Faults:
    """Counts by name that decrease with time. The longest unchanged is dropped if there are too many names."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # with the time

    def count(self, name: str, now: float) -> float:
        count, since = self._counts.get(name, (0.0, now))
        return max(0.0, count - (now - since) / _FORGIVEN_SECONDS)

    def add(self, name: str, now: float) -> None:
        self._counts[name] = min(_MAX_FAULTS, self.count(name, now) + 1), now
        self._counts.move_to_end(name)
        if len(self._counts) > _MAX_REMEMBERED:
            self._counts.popitem(last=False)
