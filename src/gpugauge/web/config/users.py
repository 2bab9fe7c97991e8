"""Passwords against bcrypt hashes: as long for a name that nobody has, in an own thread behind a short queue."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

import bcrypt

# Logins that were right, so that a scrape each second costs its 60 ms of CPU once.
_MOST_REMEMBERED = 256
# Logins that wait for the thread, of all clients and of one: strangers who guess hold up each other first.
_MOST_WAITING = 16
_MOST_WAITING_OF_ONE = 2
# bcrypt takes no more of a password; what is longer is cut, as the other implementations do.
_MOST_BYTES = 72
# Guessing must not take CPU time from what runs on this machine; at this priority a login on a busy one is still quick.
_NICENESS = 10


class Login(NamedTuple):
    """A name and a password as they came, in bytes: no character set to get wrong."""

    user: bytes
    password: bytes


class Busy(Exception):  # noqa: N818  no error: the queue is full for now
    """Too many logins wait already."""


def parse_login(authorization: str | None) -> Login | None:
    """Read an Authorization header (RFC 7617); None for one that is missing or of another kind."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return Login(user, password) if colon else None


class Logins:
    """Tells whether logins are right. Everything but bcrypt itself runs in the server's event loop."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # the one not seen for longest first
        self._waiting: dict[bytes, asyncio.Future[bool]] = {}
        self._waiting_of: Counter[str] = Counter()
        self._jobs: SimpleQueue[tuple[bytes, bytes, asyncio.Future[bool]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def remembered(self, users: Mapping[bytes, bytes], login: Login) -> bool:
        """Return whether this login was right before, with the hash that the user has now."""
        hashed = users.get(login.user)
        key = self._key(login, hashed or b"")
        if hashed is None or key not in self._remembered:
            return False
        self._remembered.move_to_end(key)
        return True

    async def right(self, users: Mapping[bytes, bytes], login: Login, remote: str) -> bool:
        """Compute it, which for a name that nobody has takes as long as for a user. Raises Busy."""
        hashed = users.get(login.user) or self._nobody(users, login.user)
        key = self._key(login, hashed)
        future = self._waiting.get(key)  # 50 scrapers that start together cost one computation
        if future is None:
            if len(self._waiting) >= _MOST_WAITING or self._waiting_of[remote] >= _MOST_WAITING_OF_ONE:
                raise Busy
            future = self._submit(key, hashed, login.password[:_MOST_BYTES], remote)
        matches = await asyncio.shield(future)
        if not matches or login.user not in users:
            return False
        self._remembered[key] = None
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return True

    def _submit(self, key: bytes, hashed: bytes, password: bytes, remote: str) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        self._waiting_of[remote] += 1

        def done(_: object) -> None:
            del self._waiting[key]
            self._waiting_of[remote] -= 1
            self._waiting_of += Counter()  # drops what is zero

        future.add_done_callback(done)
        if self._thread is None:
            # A daemon thread: a computation that is under way does not hold up the end of the process.
            self._thread = threading.Thread(target=self._compute, name="bcrypt", daemon=True)
            self._thread.start()
        self._jobs.put((hashed, password, future))
        return future

    def _compute(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            hashed, password, future = self._jobs.get()
            try:
                matches = bcrypt.checkpw(password, hashed)
            except ValueError:  # a password that this bcrypt does not take, with a NUL byte for example
                matches = False
            with suppress(RuntimeError):  # the server has stopped
                future.get_loop().call_soon_threadsafe(_settle, future, matches)

    def _key(self, login: Login, hashed: bytes) -> bytes:
        """Return what stands for the login in memory: without the secret of this process it tells nothing."""
        mac = hashlib.blake2b(key=self._secret)
        for part in (login.user, hashed, login.password):
            mac.update(len(part).to_bytes(8, "big") + part)
        return mac.digest()

    def _nobody(self, users: Mapping[bytes, bytes], user: bytes) -> bytes:
        """Return a hash that no password has, as costly as the one of a user: for the same name always the same one."""
        costs = sorted(hashed[4:6] for hashed in users.values())
        drawn = int.from_bytes(hashlib.blake2b(user, key=self._secret).digest()[:8], "big")
        return b"$2b$" + costs[drawn % len(costs)] + b"$" + b"." * 53


def _settle(future: asyncio.Future[bool], matches: bool) -> None:
    if not future.done():
        future.set_result(matches)
