"""Loads the hook of gpugauge in a container whose environment and module path belong to its image.

The device plugin sets only PYTHONUSERBASE, to a folder in which this file is the `usercustomize`. The variable is given
back here: this process and its children have their own user base, and the children load the hook by PYTHONPATH. Each
Python from 3.6 on may run this file.
"""
# ruff: noqa: PLC0415, UP036 - runs before the program, under any version, and imports only loaded modules

import os
import site
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
_BOOTSTRAP = os.path.join(_ROOT, "gpugauge", "hook", "bootstrap")


def _give_back():
    # type: () -> None
    # The user's own packages take the place of this folder, before those of the interpreter.
    os.environ.pop("PYTHONUSERBASE", None)
    place = [os.path.abspath(entry or os.curdir) for entry in sys.path].index(_HERE)
    del sys.path[place]
    site.USER_BASE = site.USER_SITE = None
    length = len(sys.path)
    site.addusersitepackages(set(sys.path))
    own = sys.path[length:]
    del sys.path[length:]
    sys.path[place:place] = own


def _arm():
    # type: () -> None
    entries = os.environ.get("PYTHONPATH", "")
    if _BOOTSTRAP not in entries.split(os.pathsep):
        os.environ["PYTHONPATH"] = _BOOTSTRAP + os.pathsep + entries if entries else _BOOTSTRAP
    sys.path.insert(0, _ROOT)
    try:
        from gpugauge.hook import arming
    finally:
        sys.path.remove(_ROOT)
    arming.arm()


def _chain():
    # type: () -> None
    # Python loads only the first usercustomize on the path, so this one imports the next one.
    ours = sys.modules.pop("usercustomize", None)
    try:
        import usercustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "usercustomize":
            raise
        if ours is not None:
            sys.modules["usercustomize"] = ours


try:
    _give_back()
    if sys.version_info >= (3, 9):
        _arm()
except Exception:
    pass
_chain()
