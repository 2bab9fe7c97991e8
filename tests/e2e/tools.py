"""Tools that pip installs beside this Python, which need not be on the path."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.needs import need


def tool(name: str) -> str:
    """Return the program's path; without it the test is skipped on a user's machine and fails in CI."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or need(name)
