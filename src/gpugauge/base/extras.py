"""Packages that only an extra of gpugauge brings, and how to install one."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from importlib import metadata


def advice(package: str) -> str:
    """Return the command that installs a package into this Python, in the version that the metadata of gpugauge
    require. The package by itself: the name of an index is no promise that it is ours.
    """
    if importlib.util.find_spec("pip") is None:
        return f"it is not part of this installation ({sys.prefix}), which has no pip"
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(requirement(package))}"


def requirement(package: str) -> str:
    """Return a package with its versions, as an extra of gpugauge requires it."""
    try:
        required = metadata.requires("gpugauge") or []
    except metadata.PackageNotFoundError:  # a checkout on the path
        required = []
    found = (text.partition(";")[0].strip() for text in required)
    return next((text for text in found if re.split(r"[^\w.-]", text)[0] == package), package)
