"""What systemd wants to hear from a Type=notify service: https://www.freedesktop.org/software/systemd/man/sd_notify.html."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends states to the service manager; does nothing where there is none, and never blocks or raises."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_interval = _watchdog_interval(environ)
        """Seconds between two calls of `watchdog()`, half of what the manager allows; None when it does not watch."""

    def ready(self, status: str = "") -> None:
        """Tell that the service is up."""
        self._send("READY=1", status)

    def stopping(self, status: str = "") -> None:
        """Tell that the service goes down."""
        self._send("STOPPING=1", status)

    def status(self, status: str) -> None:
        """Show one line in `systemctl status`."""
        self._send("", status)

    def watchdog(self) -> None:
        """Tell that the service makes progress; to be called by what must not hang."""
        if self.watchdog_interval is not None:
            self._send("WATCHDOG=1")

    def _send(self, state: str, status: str = "") -> None:
        if not self._address:
            return
        lines = [state] if state else []
        if status:
            lines.append("STATUS=" + " ".join(status.split()))
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)  # a manager that does not read must not hold the sampler
                channel.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:
            pass  # the manager is away or its queue is full; the next message comes soon


def _watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """Read WATCHDOG_USEC, which counts only when WATCHDOG_PID is absent or this process."""
    microseconds, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (microseconds.isascii() and microseconds.isdigit()) or int(microseconds) == 0:
        return None
    return int(microseconds) / 2e6 if pid in {"", str(os.getpid())} else None
