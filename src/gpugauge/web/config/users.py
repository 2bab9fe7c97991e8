"""Verification of passwords against bcrypt hashes, one at a time in a thread; an unknown user takes as long. Logins
from addresses from which wrong passwords came wait behind the others.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import random
import secrets
import string
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

import bcrypt

from gpugauge.base.guard import Loop
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


# Logins that were verified, so that a scrape each second costs its 60 ms of CPU time only once.
_MAX_REMEMBERED_LOGINS = 256
# bcrypt uses no more of a password; a longer one is cut, as in other implementations.
_MAX_PASSWORD_BYTES = 72
# Of one core: what the passwords of clients may cost from whose addresses wrong ones came before. The trainings need
# the rest. A limit and no low priority: the systemd unit does not permit setpriority().
GUESSING_SHARE = 0.25
# By so much a timer of the event loop may be early.
_TIMER_SECONDS = 0.001
# The parts of a bcrypt hash after version and cost.
_SALT_BYTES, _CHECKSUM_BYTES = 16, 23
_LETTERS = (string.ascii_uppercase + string.ascii_lowercase + string.digits).encode()
_TO_BCRYPT = bytes.maketrans(_LETTERS + b"+/", b"./" + _LETTERS)


class Login(NamedTuple):
    """A user name and a password as bytes, in the unknown character set of the client."""

    user: bytes
    password: bytes


class Busy(Exception):  # noqa: N818  (no error: the queue is full for now)
    """Too many logins are waiting, and this one has to be sent again."""


class _Job(NamedTuple):
    hashed: bytes
    password: bytes
    future: asyncio.Future[bool]


def parse_login(authorization: str | None) -> Login | None:
    """Return the login of an Authorization header (RFC 7617), or None for a missing header or another scheme."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return Login(user, password) if colon else None


class Logins:
    """Verifies logins. Everything except bcrypt itself runs in the event loop of the server."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # the least recently used first
        self._pending: dict[bytes, asyncio.Future[bool]] = {}
        self._waiting: WaitingLogins[_Job] = WaitingLogins()
        self._guesses_from = 0.0  # the time from which the share of one core allows another guess
        self._computing = False
        self._jobs: SimpleQueue[tuple[_Job, str]] = SimpleQueue()
        self._thread: Loop | None = None

    def is_remembered(self, users: Mapping[bytes, bytes], login: Login) -> bool:
        """Return whether this login was verified before, against the current hash of the user."""
        hashed = users.get(login.user)
        key = self._key(login, hashed or b"")
        if hashed is None or key not in self._remembered:
            return False
        self._remembered.move_to_end(key)
        return True

    async def verify(self, users: Mapping[bytes, bytes], login: Login, remote: str) -> bool:
        """Return whether the login is right. An unknown user name takes as long as a known one. Raises Busy."""
        hashed = users.get(login.user) or self._unknown_user_hash(users, login.user)
        key = self._key(login, hashed)
        future = self._pending.get(key)  # 50 scrapers with one login that start together need one computation
        if future is None:
            future = self._submit(key, hashed, login.password[:_MAX_PASSWORD_BYTES], remote)
        matches = await asyncio.shield(future)
        if not matches or login.user not in users:
            return False
        self._remembered[key] = None
        if len(self._remembered) > _MAX_REMEMBERED_LOGINS:
            self._remembered.popitem(last=False)
        return True

    def _submit(self, key: bytes, hashed: bytes, password: bytes, remote: str) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._pending[key] = future

        def done(future: asyncio.Future[bool]) -> None:
            del self._pending[key]
            _ = future.cancelled() or future.exception()  # whether or not the client still waits for it

        future.add_done_callback(done)
        leaving = self._waiting.put(_Job(hashed, password, future), remote, loop.time())
        if leaving and not leaving.future.done():
            leaving.future.set_exception(Busy())
        if self._thread is None:
            # A daemon thread: a running computation does not delay the end of the process.
            self._thread = Loop("bcrypt", self._compute)
            self._thread.start()
        self._next(loop)
        return future

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand the next login to the thread, if it has nothing to do. While guesses pause, one without faults."""
        now = loop.time()
        pausing = self._guesses_from - now > _TIMER_SECONDS
        taken = None if self._computing else self._waiting.take(now, without_faults=pausing)
        if taken:
            self._computing = True
            self._jobs.put(taken)

    def _compute(self) -> None:
        job, remote = self._jobs.get()
        before, matches = time.thread_time(), False
        try:
            with suppress(ValueError):  # a password that bcrypt refuses, for example with a NUL byte
                matches = bcrypt.checkpw(job.password, job.hashed)
        finally:
            seconds = time.thread_time() - before
            with suppress(RuntimeError):  # the server has stopped
                job.future.get_loop().call_soon_threadsafe(self._computed, job, remote, matches, seconds)

    def _computed(self, job: _Job, remote: str, matches: bool, seconds: float) -> None:
        loop = job.future.get_loop()
        self._computing = False
        if not matches:
            self._waiting.fault(remote, loop.time())
            pause = seconds / GUESSING_SHARE - seconds
            self._guesses_from = loop.time() + pause
            loop.call_later(pause, self._next, loop)
        if not job.future.done():
            job.future.set_result(matches)
        self._next(loop)

    def _key(self, login: Login, hashed: bytes) -> bytes:
        """Return the key of a login in memory. It reveals nothing without the secret of this process."""
        mac = hashlib.blake2b(key=self._secret)
        for part in (login.user, hashed, login.password):
            mac.update(len(part).to_bytes(8, "big") + part)
        return mac.digest()

    def _unknown_user_hash(self, users: Mapping[bytes, bytes], user: bytes) -> bytes:
        """Return a hash of no password, always the same for a name, with the cost of a user's hash."""
        costs = sorted(hashed[4:6] for hashed in users.values())
        drawn = hashlib.blake2b(user, key=self._secret).digest()
        cost = costs[int.from_bytes(drawn[:8], "big") % len(costs)]
        return b"$2b$" + cost + b"$" + _encoded(drawn[8 : 8 + _SALT_BYTES]) + _encoded(drawn[-_CHECKSUM_BYTES:])


def _encoded(data: bytes) -> bytes:
    """Return bytes as in a bcrypt hash: Base64 with another alphabet, without padding."""
    return base64.b64encode(data).rstrip(b"=").translate(_TO_BCRYPT)
