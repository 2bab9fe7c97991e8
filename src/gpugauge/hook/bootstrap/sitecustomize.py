"""Loads the hook of gpugauge at the start of an interpreter, then the sitecustomize that would have run without it.

`gpugauge run` puts this directory, which holds nothing else, on PYTHONPATH. Any version of Python may find it there.
"""
# ruff: noqa: PLC0415, UP036 - runs before the program, under any version: only what is loaded already

import os
import sys


def _arm():
    # type: () -> None
    # The package is loaded from beside this file, and leaves no trace on the module path of the program.
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    sys.path.insert(0, root)
    try:
        from gpugauge.hook import arming
    finally:
        sys.path.remove(root)
    arming.arm()


def _chain():
    # type: () -> None
    # Python loads the first sitecustomize on the path only; ours steps aside for the next one.
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
try:
    if sys.version_info >= (3, 9):
        _arm()
except Exception:
    pass
_chain()
