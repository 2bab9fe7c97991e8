"""Loads the hook of gpugauge at the start of an interpreter, then the next sitecustomize on the module path. `gpugauge
run` puts this directory on PYTHONPATH. It has no other file. Any version of Python may run this file; as
`usercustomize`, that file runs it.
"""
# ruff: noqa: PLC0415, UP036 - runs before the program, under any version, and imports only loaded modules

import os
import sys


def _arm():
    # type: () -> None
    # The package is loaded from the folder above. The module path of the program stays unchanged.
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    sys.path.insert(0, root)
    try:
        from gpugauge.hook import arming
    finally:
        sys.path.remove(root)
    arming.arm()


def _chain():
    # type: () -> None
    # Python loads only the first module of this name on the path, so this one imports the next one.
    ours = sys.modules.pop(__name__, None)
    try:
        __import__(__name__)
    except ImportError as error:
        if getattr(error, "name", None) != __name__:
            raise
        if ours is not None:
            sys.modules[__name__] = ours


_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
try:
    if sys.version_info >= (3, 9):
        _arm()
except Exception:
    pass
_chain()
