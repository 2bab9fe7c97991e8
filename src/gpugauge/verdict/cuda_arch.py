"""Whether a build of torch holds code that a GPU can run. Standard library only, runs on Python 3.9."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def arch_supported(arch_list: Iterable[str], capability: tuple[int, int]) -> bool | None:
    """Compare `torch.cuda.get_arch_list()` with a GPU's compute capability; None if the list names no architecture of
    NVIDIA's (a CPU build, or ROCm's gfx names).

    sm_XY is machine code for X.Y and later minor versions of the same major; compute_XY is PTX, which the driver
    compiles for X.Y and everything later; the suffix a binds either to exactly X.Y, f to the family (same major).
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
    """
    known = [match for match in map(_ARCH.fullmatch, arch_list) if match]
    return any(_runs(match, capability) for match in known) if known else None


def _runs(match: re.Match[str], capability: tuple[int, int]) -> bool:
    kind, major, minor, suffix = match.groups()
    built = int(major), int(minor)
    if suffix == "a":
        return built == capability
    if kind == "sm" or suffix == "f":
        return built[0] == capability[0] and built[1] <= capability[1]
    return built <= capability
