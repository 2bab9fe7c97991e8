"""Compatibility of a torch build with the compute capability of a GPU. Standard library only, runs on Python 3.9."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def arch_supported(arch_list: Iterable[str], capability: tuple[int, int]) -> bool | None:
    """Return whether a GPU of a compute capability can run a build with this `torch.cuda.get_arch_list()`; None if the
    list contains no architecture of NVIDIA (a CPU build, or gfx names of ROCm).

    sm_XY is machine code for X.Y and later minor versions of the same major version. compute_XY is PTX, which the
    driver compiles for X.Y and all later versions. The suffix a restricts either to exactly X.Y, f to the same major
    version. https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
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
