"""The import of pynvml, NVIDIA's binding of NVML, without `ctypes.util`: pynvml imports that module but never calls it,
and it would load subprocess, tempfile and shutil, 1 MB per worker. No other module imports pynvml.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["pynvml"]

_UNUSED = "ctypes.util"


def _find_library(name: str) -> str | None:
    """Return the path of a shared library; imports the real module."""
    from ctypes.util import find_library  # noqa: PLC0415  (only if it is called)

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
