"""User names by number."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

# A directory service that does not answer must not hold up a reading; the number will do then.
_PATIENCE_SECONDS = 0.2
_MAX_NAMES = 4096
_IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")


def names_are_ours() -> bool:
    """Tell whether our own user database is the host's: a container has one of its own, with other names."""
    environment = os.environ.get("KUBERNETES_SERVICE_HOST") or os.environ.get("container")  # noqa: SIM112 (systemd-nspawn, Podman and LXC set it so)
    return not environment and not any(Path(path).exists() for path in _IN_CONTAINER)


class Users:
    """Names of uids. They are asked for in a thread of its own, because LDAP and its like may take forever."""

    def __init__(self, known: bool) -> None:
        self._known = known
        self._names: dict[int, str] = {}
        self._asking: threading.Thread | None = None

    def name(self, uid: int) -> str:
        """Return the name, or the number if there is none, none in time, or names are not the host's."""
        if self._known and uid and uid not in self._names and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(uid,), name="users", daemon=True)
            self._asking.start()
            self._asking.join(_PATIENCE_SECONDS)
        return self._names.get(uid) or self.number(uid)

    @staticmethod
    def number(uid: int) -> str:
        """Return the number as text; only root is the same everywhere."""
        return str(uid) if uid else "root"

    def _ask(self, uid: int) -> None:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            # No such user, or the directory is not up yet: asked again for the next process.
            return
        if len(self._names) >= _MAX_NAMES:
            self._names.pop(next(iter(self._names)))
        self._names[uid] = name
