"""The GPUs of the kernel driver. The library does not enumerate a GPU that was added after the library was opened."""

from __future__ import annotations

from pathlib import Path


def bound_devices(procfs: Path) -> frozenset[str] | None:
    """Return the PCI addresses of the GPUs that the NVIDIA kernel driver is bound to; None if they are unknown."""
    try:
        return frozenset(entry.name for entry in (procfs / "driver/nvidia/gpus").iterdir())
    except OSError:
        return None
