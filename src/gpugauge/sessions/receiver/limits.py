"""The limits of connections, messages and bytes, by user, by cgroup and in all."""

from __future__ import annotations

import time

from gpugauge.sessions.receiver.peer import PASSED_ON, CgroupUser
from gpugauge.sessions.receiver.protocol import Options

_MAX_BUCKETS = 4096  # more groups than that are forgotten: an attacker may have many users
_RESERVED = 1 / 8  # of the connections in all, for groups with few: with less than
_FEW = 1 / 64  # of them
_MIN_CONNECTS = 256  # at once, also where fewer connections are allowed
_ALL = "all"
_PASSED_ON = "cgroup", PASSED_ON


class Bucket:
    """Credit that returns at a steady rate, up to a maximum."""

    __slots__ = ("_at", "_maximum", "_rate", "credit")

    def __init__(self, rate: float, maximum: float) -> None:
        self._rate, self._maximum, self.credit = rate, maximum, maximum
        self._at = time.monotonic()

    def spend(self, amount: float = 1.0) -> bool:
        """Take `amount`; return whether there was as much. The debt is at most that of a second."""
        now = time.monotonic()
        left = min(self._maximum, self.credit + (now - self._at) * self._rate) - amount
        self._at = now
        self.credit = max(left, -self._rate - amount)
        return left >= 0

    def full(self) -> bool:
        """Return whether all of the credit is there."""
        return self.credit + (time.monotonic() - self._at) * self._rate >= self._maximum


Group = tuple[str, object]


def groups(owner: CgroupUser) -> list[Group]:
    """Return the groups whose limits apply to an owner. A process of another pid namespace has no cgroup here."""
    return [("user", owner.uid), ("cgroup", owner.cgroup)] if owner.cgroup else [("user", owner.uid)]


class _Counts(dict[Group, int]):
    def __missing__(self, _: Group) -> int:
        return 0


class Limits:
    """The use of each group, and the bans."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._connections = _Counts()
        self._connects: dict[Group, Bucket] = {}
        self._messages: dict[Group, Bucket] = {}
        self._bytes: dict[Group, Bucket] = {}
        self._bans: dict[CgroupUser, float] = {}  # monotonic time of the end
        self._by_kind = {"user": options.connections_by_user, "cgroup": options.connections_by_cgroup}

    def connects(self, group: Group, count: float = 1.0) -> bool:
        """Count an attempt to connect; return whether it is one too many. With a count of 0, none is made yet."""
        # A cgroup may open twice as many, so that one of its users does not use up what is there for all.
        share = 2 if group[0] == "cgroup" else 1
        at_once = max(self._options.connections_by_user, _MIN_CONNECTS)
        return not _of(self._connects, group, share * self._options.connects, share * at_once).spend(count)

    def full(self, owner: CgroupUser) -> str:
        """Return the kind of the group that has no room for another connection, "" if all have."""
        used, limit = {g: self._connections[g] for g in groups(owner)}, self._options.connections
        few = max(used.values()) < limit * _FEW
        if self._connections[_ALL, ""] >= limit * (1 if few else 1 - _RESERVED):
            return _ALL
        return next((group[0] for group in used if self._held(group) >= self._by_kind[group[0]]), "")

    def _held(self, group: Group) -> int:
        """Return how many connections count for a group. Those passed on may be of any cgroup, and are few."""
        held, passed = self._connections[group], self._connections[_PASSED_ON]
        if group != _PASSED_ON:
            return held + passed * (group[0] == "cgroup")
        most = max((n for g, n in self._connections.items() if g[0] == "cgroup" and g != group), default=0)
        return passed + most if passed < self._options.connections * _FEW else self._options.connections

    def add(self, owner: CgroupUser, count: int) -> None:
        """Count connections of an owner; -1 for one that has ended."""
        for group in [(_ALL, ""), *groups(owner)]:
            found = self._connections[group] + count
            if found:
                self._connections[group] = found
            else:
                del self._connections[group]

    def may_read(self, owner: CgroupUser) -> bool:
        """Return whether the groups of an owner have credit for another message."""
        return all(bucket.spend(0) for kind in (self._messages, self._bytes) for bucket in self._buckets(kind, owner))

    def read(self, owner: CgroupUser, size: int) -> None:
        """Count a message of `size` bytes."""
        for bucket in self._buckets(self._messages, owner):
            bucket.spend()
        for bucket in self._buckets(self._bytes, owner):
            bucket.spend(size)

    def _buckets(self, kind: dict[Group, Bucket], owner: CgroupUser) -> list[Bucket]:
        o = self._options
        rate = o.messages_by_owner if kind is self._messages else o.bytes_by_owner
        # After a pause of the daemon the queues of all connections are full.
        burst = rate * 2
        found = [_of(kind, group, rate, burst) for group in groups(owner)]
        return [*found, _of(kind, (_ALL, ""), 2 * rate, 2 * burst)]

    def ban(self, owner: CgroupUser, seconds: float) -> bool:
        """Refuse connections of an owner from now on; return whether it was not banned before."""
        known = self.banned(owner)
        self._bans[owner] = time.monotonic() + seconds
        return not known

    def banned(self, owner: CgroupUser) -> bool:
        """Return whether an owner is banned."""
        return owner in self._bans and self._bans[owner] > time.monotonic()

    def sweep(self) -> int:
        """Forget what has no effect any more; return the number of bans."""
        now = time.monotonic()
        self._bans = {owner: until for owner, until in self._bans.items() if until > now}
        for kind in (self._connects, self._messages, self._bytes):
            for group in [group for group, bucket in kind.items() if bucket.full()]:
                del kind[group]
        return len(self._bans)


def _of(kind: dict[Group, Bucket], group: Group, rate: float, maximum: float) -> Bucket:
    bucket = kind.pop(group, None)
    if bucket is None:
        if len(kind) >= _MAX_BUCKETS:
            kind.pop(next(iter(kind)))
        bucket = Bucket(rate, maximum)
    kind[group] = bucket  # the last one: a range of users does not make their cgroup forgotten
    return bucket
