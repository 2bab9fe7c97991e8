"""User names by number."""

from __future__ import annotations

import os
import pwd
from functools import partial
from pathlib import Path

from gpugauge.base.guard import Background, Guard

# A directory service that does not respond must not delay the caller, which uses the number instead.
_LOOKUP_WAIT_SECONDS = 0.2
_MAX_NAMES = 4096
_IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")


def shares_host_users() -> bool:
    """Return whether this process uses the user database of the host: containers have their own."""
    environment = os.environ.get("KUBERNETES_SERVICE_HOST") or os.environ.get("container")  # noqa: SIM112 (systemd-nspawn, Podman and LXC set it so)
    return not environment and not any(Path(path).exists() for path in _IN_CONTAINER)


class Users:
    """Names of uids. They are looked up in a thread, since a directory service such as LDAP may never respond."""

    def __init__(self, known: bool) -> None:
        """`known`: whether the user database of this process has the names."""
        self._known = known
        self._names: dict[int, str] = {}
        self._lookup: Background[bool] = Background("users")
        self._guard = Guard("users")

    def name(self, uid: int) -> str:
        """Return the name of a user; the number if there is no name, not in time, or names are not known."""
        if self._known and uid and uid not in self._names and self._lookup.running is None:
            self._lookup.start(partial(self._guard.run, partial(self._look_up, uid)), _LOOKUP_WAIT_SECONDS)
        return self._names.get(uid) or self.number(uid)

    def is_known(self, uid: int) -> bool:
        """Return whether `name` is final: the one that was looked up, or the number where names are not known."""
        return not self._known or not uid or uid in self._names

    @staticmethod
    def number(uid: int) -> str:
        """Return the number as text, `root` for 0, which is the same on all machines."""
        return str(uid) if uid else "root"

    def _look_up(self, uid: int) -> None:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            # No such user, or the directory service is not up yet: looked up again for the next process.
            return
        if len(self._names) >= _MAX_NAMES:
            self._names.pop(next(iter(self._names)))
        self._names[uid] = name
