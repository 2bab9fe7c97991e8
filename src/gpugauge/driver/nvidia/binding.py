"""NVIDIA's binding of the driver's library, without what it imports and never calls: `ctypes.util`, for whose sake
subprocess, tempfile and shutil would be 1 MB of each worker. The only module that imports pynvml.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["pynvml"]

_UNUSED = "ctypes.util"


def _find_library(name: str) -> str | None:
    """What the real module does, loaded should anybody ever ask."""
    from ctypes.util import find_library  # noqa: PLC0415  (only if asked)

    return find_library(name)


if _UNUSED in sys.modules:
    import pynvml
else:
    sys.modules[_UNUSED] = ModuleType(_UNUSED)
    sys.modules[_UNUSED].__dict__["find_library"] = _find_library
    try:
        import pynvml
    finally:
        del sys.modules[_UNUSED]
