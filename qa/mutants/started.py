"""Mutants in the processes that a test starts: they take the code of a module from a folder of compiled files, which
their environment names.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

from qa.mutants.mutant import ROOT

_SHARED = ROOT / ".cache" / "compiled"  # of the interpreter and of libraries: torch takes 20 s to compile
_NEVER_CHECKED = (1).to_bytes(4, "little") + bytes(8)  # whatever the file of the source says, PEP 552


def give(codes: Mapping[str, CodeType]) -> None:
    """Let this process, as far as it has not imported them, and those that it starts import modules with other code, by
    their files. To be called in a child of forked().
    """
    folder = Path(tempfile.mkdtemp(dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
    folder.chmod(0o711)  # some tests start processes of another user
    for path in map(sysconfig.get_path, ("stdlib", "purelib")):
        link, shared = Path(f"{folder}{path}"), Path(f"{_SHARED}{path}")
        link.parent.mkdir(parents=True)
        shared.mkdir(parents=True, exist_ok=True)
        link.symlink_to(shared)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = vars(sys)["pycache_prefix"] = str(folder)
    for file, code in codes.items():
        compiled = Path(importlib.util.cache_from_source(file))
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.write_bytes(importlib.util.MAGIC_NUMBER + _NEVER_CHECKED + marshal.dumps(code))
