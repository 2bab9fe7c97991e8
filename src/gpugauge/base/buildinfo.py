"""Version, commit and build time of gpugauge. A wheel contains them in a file; in a checkout git returns the commit."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpugauge import __version__

UNKNOWN = "unknown"
FILE = "build.json"  # in the package, in wheels and source packages, made by src/hatch_build.py
_PACKAGE = Path(__file__).resolve().parents[1]
_GIT_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Build:
    """`revision`: the commit, with -dirty if files were changed. `origin`: `checkout`, or the wheel's build time."""

    version: str
    revision: str
    origin: str

    def __str__(self) -> str:
        return f"{self.version} (revision {self.revision}; {self.origin})"


@functools.cache
def build() -> Build:
    """Return the build of this process, determined at the first call. Unknown values are `unknown`."""
    root = _PACKAGE.parent.parent
    try:
        facts = json.loads((_PACKAGE / FILE).read_text())
        return Build(__version__, str(facts["revision"]), f"built {facts['built']}")
    except (OSError, ValueError, KeyError, TypeError):
        return Build(__version__, revision_of(root), "checkout" if (root / ".git").exists() else "build unknown")


def revision_of(root: Path) -> str:
    """Return the commit of the checkout at `root`. A repository in a parent folder does not count."""
    if not (root / ".git").exists():
        return UNKNOWN
    # A git hook or a script may have set variables that name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GIT_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return result.stdout.strip() or UNKNOWN
