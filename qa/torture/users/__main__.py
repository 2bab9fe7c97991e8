"""Carries out attacks until it is killed: `python -m qa.torture.users HOOK PORT FOLDER UID=NAME=CGROUP …`, as root.

Each attack has a process of its own, with a uid and a cgroup of its own. All modules are imported before the user is
changed, because the user may not read them.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - socket imports it when it is first needed, and the user may not read it
import resource
import signal
import sys
from functools import partial
from pathlib import Path

from qa.torture.users.attacks import ATTACKS
from qa.torture.users.target import Target, become, child

_MAX_SECONDS = 600  # if the bench ends without ending this


def main() -> None:
    """Begin all attacks, and wait."""
    hook, port, folder, *words = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    for word in words:
        uid, name, cgroup = word.split("=")
        child(partial(_run, name, Target(hook, int(port), Path(folder), int(uid)), Path(cgroup)))
    print("begun", flush=True)
    signal.alarm(_MAX_SECONDS)
    signal.pause()


def _run(name: str, target: Target, cgroup: Path) -> None:
    signal.alarm(_MAX_SECONDS)
    cgroup.write_text("0")  # this process
    act = ATTACKS[name](target)
    become(target.uid)
    act()


if __name__ == "__main__":
    main()
