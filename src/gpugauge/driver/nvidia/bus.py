"""Which GPUs the kernel's driver has, without asking the library: it never shows one that came after it was opened."""

from __future__ import annotations

from pathlib import Path


def bound_devices(procfs: Path) -> frozenset[str] | None:
    """Return the PCI addresses of the GPUs that the NVIDIA kernel driver is bound to; None if it does not tell."""
    try:
        return frozenset(entry.name for entry in (procfs / "driver/nvidia/gpus").iterdir())
    except OSError:
        return None
