"""Bakes commit and time into wheels and source packages, where no repository tells them (gpugauge/buildinfo.py)."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BakeBuild(BuildHookInterface[Any]):
    """Adds build.json to what is built, but not to an editable install, whose commit changes under it.

    GPUGAUGE_REVISION names the commit where there is no repository, as in an image; SOURCE_DATE_EPOCH (Unix time) fixes
    the time, so that the same source gives the same bytes.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before each target is built; `version` is `editable` or `standard`."""
        root = Path(self.root)
        info = _buildinfo(root)
        inside = Path("src", "gpugauge", info.FILE)
        # A wheel that is made from a source package keeps what that one carries.
        if version == "editable" or (root / inside).exists():
            return
        seconds = os.environ.get("SOURCE_DATE_EPOCH")
        time = datetime.fromtimestamp(int(seconds), timezone.utc) if seconds else datetime.now(timezone.utc)
        facts = {
            "revision": os.environ.get("GPUGAUGE_REVISION") or info.revision_of(root),
            "built": f"{time:%Y-%m-%dT%H:%M:%SZ}",
        }
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        made = Path(folder.name, info.FILE)
        made.write_text(json.dumps(facts) + "\n")
        target = inside if self.target_name == "sdist" else inside.relative_to("src")
        build_data["force_include"][str(made)] = str(target)


def _buildinfo(root: Path) -> ModuleType:
    """Return the module of this very source: gpugauge is not installed while it is built."""
    sys.path.insert(0, str(root / "src"))
    return importlib.import_module("gpugauge.buildinfo")
