"""The files of the hook on the node, which a pod sees at `/opt/gpugauge-hook`."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from gpugauge.hook import launch

CONTAINER_FOLDER = "/opt/gpugauge-hook"
_USER_BASE = "user"
# The interpreters that find the hook by PYTHONUSERBASE; `t` is the build without the global lock.
_INTERPRETERS = tuple(f"python3.{minor}{build}" for minor in range(6, 30) for build in ("", "t"))
_UNFINISHED = ".new-"


def environment() -> dict[str, str]:
    """Return the variables that load the hook in a container. PYTHONPATH stays that of the image or of the pod."""
    return {"PYTHONUSERBASE": f"{CONTAINER_FOLDER}/{_USER_BASE}"}


def install(folder: Path) -> Path:
    """Copy the hook into a folder below `folder` that is named by its content, and return it. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    try:
        made.chmod(0o755)
        launch.export(made)
        _link(made)
        target = folder / _digest(made)
        if not target.is_dir():
            made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def _link(made: Path) -> None:
    """Make the hook the `usercustomize` of each interpreter's user base."""
    for interpreter in _INTERPRETERS:
        packages = made / _USER_BASE / "lib" / interpreter / "site-packages"
        packages.mkdir(parents=True)
        source = os.path.relpath(made / "gpugauge" / "hook" / "userbase" / "usercustomize.py", packages)
        (packages / "usercustomize.py").symlink_to(source)


def _digest(made: Path) -> str:
    content = hashlib.sha256()
    for path in sorted(made.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        content.update(f"{path.relative_to(made)}\0{len(data)}\0".encode() + data)
    return content.hexdigest()[:16]
