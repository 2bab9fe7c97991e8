"""The devices visible to this process, with figures of its caching allocator. Read only once the program uses CUDA."""

from __future__ import annotations

from typing import Any

import torch

from gpugauge.wire import messages as wire


def devices() -> tuple[wire.Device, ...]:
    """Return the visible devices, those in use with figures; empty before the program has initialised CUDA.

    Reading the figures takes only the allocator's lock. While memory history is recorded that lock can wait for the GIL
    (pytorch issue 97833): the figures are not read then.
    """
    if not torch.cuda.is_initialized():
        return ()
    recording = getattr(torch._C, "_cuda_isHistoryEnabled", bool)()  # noqa: SLF001  (torch has no public way)
    count = min(torch.cuda.device_count(), wire.MAX_DEVICES)
    return tuple(
        wire.Device(index, **_identity(index), **({} if recording else _figures(index))) for index in range(count)
    )


def _figures(index: int) -> dict[str, Any]:
    statistics = torch.cuda.memory_stats_as_nested_dict(index)
    reserved = statistics.get("reserved_bytes", {}).get("all", {})
    if not reserved.get("peak"):
        return {}
    allocated = statistics["allocated_bytes"]["all"]
    return {
        "allocated": allocated["current"],
        "allocated_peak": allocated["peak"],
        "reserved": reserved["current"],
        "active": statistics["active_bytes"]["all"]["current"],
        "inactive_split": statistics["inactive_split_bytes"]["all"]["current"],
        "retries": statistics["num_alloc_retries"],
        "ooms": statistics["num_ooms"],
        # Since torch 2.2.
        "device_allocs": statistics.get("num_device_alloc"),
        "device_frees": statistics.get("num_device_free"),
    }


_identities: dict[int, dict[str, Any]] = {}


def _identity(index: int) -> dict[str, Any]:
    """Return the device's name, compute capability, and uuid as the driver spells it (None before torch 2.4)."""
    if index not in _identities:
        properties = torch.cuda.get_device_properties(index)
        raw = getattr(properties, "uuid", None)
        uuid = None if raw is None else wire.clean(str(raw))
        name = getattr(properties, "name", None)
        major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
        _identities[index] = {
            "uuid": uuid if uuid is None or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
            "name": wire.clean(name) if name else None,
            "capability": f"{major}.{minor}" if major is not None and minor is not None else None,
        }
    return _identities[index]
