"""Which gpugauge this is: the commit and the build. A wheel carries both in a file; a checkout asks git."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpugauge import __version__

UNKNOWN = "unknown"
FILE = "build.json"  # beside this module in wheels and source packages, made by src/hatch_build.py
_PACKAGE = Path(__file__).resolve().parent
_PATIENCE = 5.0  # seconds for git


@dataclass(frozen=True)
class Build:
    """`revision`: the commit, with -dirty if files were changed; `origin`: `checkout`, or when the wheel was built."""

    version: str
    revision: str
    origin: str

    def __str__(self) -> str:
        return f"{self.version} (revision {self.revision}; {self.origin})"


@functools.cache
def build() -> Build:
    """Return what this process runs, as it was when first asked; what cannot be known is `unknown`."""
    root = _PACKAGE.parent.parent
    try:
        baked = json.loads((_PACKAGE / FILE).read_text())
        return Build(__version__, str(baked["revision"]), f"built {baked['built']}")
    except (OSError, ValueError, KeyError, TypeError):
        return Build(__version__, revision_of(root), "checkout" if (root / ".git").exists() else "build unknown")


def revision_of(root: Path) -> str:
    """Return the commit of the checkout at `root`; not of a repository around it, in which it was only unpacked."""
    if not (root / ".git").exists():
        return UNKNOWN
    # Only this repository counts, whatever a hook of git or a script has put into the environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN
