"""The sums over the GPUs of a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Facts = dict[str, Any]
_SUMS = ("memory_used_bytes", "memory_total_bytes", "power_watts", "power_limit_watts")


def totals(gpus: Sequence[Facts]) -> Facts:
    """Return the sums over the GPUs that answer, None where a part is not known, and mean loads over those that report
    one. A GPU in MIG mode reports none, its MIG devices do.
    """
    up = [gpu for gpu in gpus if gpu["up"]]
    loads = [load for gpu in up if (load := gpu["load"] if gpu["load_5m"] is None else gpu["load_5m"]) is not None]
    mig = [device["load"] for gpu in up for device in gpu["mig"] if device["load"] is not None]
    return {
        "gpus": len(gpus),
        "up": len(up),
        "load": _mean(loads),
        "load_gpus": len(loads),
        "mig_load": _mean(mig),
        "mig_devices": sum(len(gpu["mig"]) for gpu in up),
        **{key: _sum([gpu[key] for gpu in up]) for key in _SUMS},
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
