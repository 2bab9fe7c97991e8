"""Verification of passwords against bcrypt hashes, in a separate thread behind a short queue. An unknown user name
takes as long as a known one.
"""

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

# Logins that were verified, so that a scrape each second costs its 60 ms of CPU time only once.
_MAX_REMEMBERED_LOGINS = 256
# Logins that wait for the thread, of all clients and of one: clients that guess passwords delay each other first.
_MAX_WAITING_LOGINS = 16
_MAX_WAITING_LOGINS_PER_CLIENT = 2
# bcrypt uses no more of a password; a longer one is cut, as in other implementations.
_MAX_PASSWORD_BYTES = 72
# Guessed passwords must not take CPU time from the trainings; on a busy machine a login is still fast at this priority.
_NICENESS = 10


class Login(NamedTuple):
    """A user name and a password as bytes, in the unknown character set of the client."""

    user: bytes
    password: bytes


class Busy(Exception):  # noqa: N818  (no error: the queue is full for now)
    """Too many logins are waiting."""


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
        self._waiting: dict[bytes, asyncio.Future[bool]] = {}
        self._waiting_of: Counter[str] = Counter()
        self._jobs: SimpleQueue[tuple[bytes, bytes, asyncio.Future[bool]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

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
        future = self._waiting.get(key)  # 50 scrapers with one login that start together need one computation
        if future is None:
            if len(self._waiting) >= _MAX_WAITING_LOGINS or self._waiting_of[remote] >= _MAX_WAITING_LOGINS_PER_CLIENT:
                raise Busy
            future = self._submit(key, hashed, login.password[:_MAX_PASSWORD_BYTES], remote)
        matches = await asyncio.shield(future)
        if not matches or login.user not in users:
            return False
        self._remembered[key] = None
        if len(self._remembered) > _MAX_REMEMBERED_LOGINS:
            self._remembered.popitem(last=False)
        return True

    def _submit(self, key: bytes, hashed: bytes, password: bytes, remote: str) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        self._waiting_of[remote] += 1

        def done(_: object) -> None:
            del self._waiting[key]
            self._waiting_of[remote] -= 1
            self._waiting_of += Counter()  # drops the zeros

        future.add_done_callback(done)
        if self._thread is None:
            # A daemon thread: a running computation does not delay the end of the process.
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
            except ValueError:  # a password that bcrypt refuses, for example with a NUL byte
                matches = False
            with suppress(RuntimeError):  # the server has stopped
                future.get_loop().call_soon_threadsafe(_settle, future, matches)

    def _key(self, login: Login, hashed: bytes) -> bytes:
        """Return the key of a login in memory. It reveals nothing without the secret of this process."""
        mac = hashlib.blake2b(key=self._secret)
        for part in (login.user, hashed, login.password):
            mac.update(len(part).to_bytes(8, "big") + part)
        return mac.digest()

    def _unknown_user_hash(self, users: Mapping[bytes, bytes], user: bytes) -> bytes:
        """Return a hash that no password matches, with the cost of a user's hash. It is always the same for a name."""
        costs = sorted(hashed[4:6] for hashed in users.values())
        drawn = int.from_bytes(hashlib.blake2b(user, key=self._secret).digest()[:8], "big")
        return b"$2b$" + costs[drawn % len(costs)] + b"$" + b"." * 53


def _settle(future: asyncio.Future[bool], matches: bool) -> None:
    if not future.done():
        future.set_result(matches)
