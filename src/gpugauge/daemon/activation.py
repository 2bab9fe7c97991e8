"""Sockets that systemd opened for us: https://www.freedesktop.org/software/systemd/man/sd_listen_fds.html."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_FIRST = 3  # the protocol begins after standard input, output and error


def listen_fds(environ: MutableMapping[str, str] = os.environ) -> dict[str, int]:
    """Return the descriptors passed to this process by their FileDescriptorName=, `unknown` without one; of several
    with one name the last. They and the variables are kept from child processes, so a second call returns nothing.
    """
    pid, count, names = (environ.pop(f"LISTEN_{what}", "") for what in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return {}
    descriptors = range(_FIRST, _FIRST + int(count))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    given = names.split(":") if names else []
    return dict(zip([*given, *["unknown"] * (len(descriptors) - len(given))], descriptors, strict=True))
