"""systemd's protocols for services: passed sockets and state notifications.

Sources: https://www.freedesktop.org/software/systemd/man/sd_listen_fds.html,
https://www.freedesktop.org/software/systemd/man/sd_notify.html.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping

_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START: the first one after standard input, output and error


def listen_fds(environ: MutableMapping[str, str] = os.environ) -> dict[str, int]:
    """Return the passed descriptors by name; a second call returns {}, and child processes do not inherit them."""
    pid, count, names = (environ.pop(f"LISTEN_{suffix}", "") for suffix in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return {}
    descriptors = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    given = names.split(":") if names else []
    return dict(zip([*given, *["unknown"] * (len(descriptors) - len(given))], descriptors, strict=True))


class Notifier:
    """Sends state changes to the service manager. Does nothing without a manager; never blocks and never raises."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_interval = _watchdog_interval(environ)
        """Seconds between two calls of `watchdog()`: half of WatchdogSec=; None if the watchdog is off."""

    def ready(self) -> None:
        """Report that the service is up."""
        self._send(b"READY=1")

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._send(b"STOPPING=1")

    def watchdog(self) -> None:
        """Report progress. Call it from the thread that must not hang."""
        if self.watchdog_interval is not None:
            self._send(b"WATCHDOG=1")

    def _send(self, state: bytes) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)  # a manager that does not read must not block the sampler
                channel.sendto(state, self._address)
        except OSError:
            pass  # the manager does not run or its queue is full; the next message follows soon


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Return half of WATCHDOG_USEC in seconds. It applies only if WATCHDOG_PID is absent or names this process."""
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (microseconds.isascii() and microseconds.isdigit()) or int(microseconds) == 0:
        return None
    return int(microseconds) / 2e6 if pid in {"", str(os.getpid())} else None
