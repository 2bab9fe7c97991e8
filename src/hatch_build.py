"""Build hook that adds commit and build time to wheels and source packages (base/buildinfo.py), and the dashboards
to wheels (gpugauge/artifacts/dashboards.py).
"""

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
    """Adds the files to the package, except to an editable install: it reads the dashboards from the checkout, whose
    commit changes after the build.

    GPUGAUGE_REVISION sets the commit where there is no repository, as in an image. SOURCE_DATE_EPOCH (Unix time) sets
    the build time, so that the same source gives the same bytes.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files before a target is built; `version` is `editable` or `standard`."""
        if version == "editable":
            return
        root = Path(self.root)
        if self.target_name == "wheel":
            for name in _module(root, "gpugauge.artifacts.dashboards").NAMES:
                build_data["force_include"][f"grafana/{name}.json"] = f"gpugauge/dashboards/{name}.json"
        info = _module(root, "gpugauge.base.buildinfo")
        path = Path("src", "gpugauge", info.FILE)
        # A wheel that is built from a source package keeps the package's file.
        if (root / path).exists():
            return
        seconds = os.environ.get("SOURCE_DATE_EPOCH")
        time = datetime.fromtimestamp(int(seconds), timezone.utc) if seconds else datetime.now(timezone.utc)
        facts = {
            "revision": os.environ.get("GPUGAUGE_REVISION") or info.revision_of(root),
            "built": f"{time:%Y-%m-%dT%H:%M:%SZ}",
        }
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        file = Path(folder.name, info.FILE)
        file.write_text(json.dumps(facts) + "\n")
        target = path if self.target_name == "sdist" else path.relative_to("src")
        build_data["force_include"][str(file)] = str(target)


def _module(root: Path, name: str) -> ModuleType:
    """Return a module from this source tree: gpugauge is not installed during the build."""
    sys.path.insert(0, str(root / "src"))
    return importlib.import_module(name)
