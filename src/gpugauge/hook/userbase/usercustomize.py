"""Loads the hook of gpugauge in a container whose environment and module path belong to its image. The device plugin
sets only PYTHONUSERBASE, to a folder in which this file is the `usercustomize`. The variable is given back here: this
process and its children have their own user base, and the children load the hook by PYTHONPATH. Each Python from 3.6 on
may run this file.
"""

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


try:
    _give_back()
    _entries = os.environ.get("PYTHONPATH", "")
    if sys.version_info >= (3, 9) and _BOOTSTRAP not in _entries.split(os.pathsep):
        os.environ["PYTHONPATH"] = _BOOTSTRAP + os.pathsep + _entries if _entries else _BOOTSTRAP
except Exception:
    pass
_place = {"__name__": __name__, "__file__": os.path.join(_BOOTSTRAP, "sitecustomize.py")}
with open(_place["__file__"], encoding="utf-8") as _file:
    exec(_file.read(), _place)  # noqa: S102 - our own file: arms the hook, and imports the next usercustomize
