"""Parameters and optimizer state by device and dtype. A scan takes about 1 ms for 1,000 parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gpugauge.wire import messages as wire

_MAX_PARTS = 64  # of a batch, among which a tensor is looked for


def parameters(optimizers: Iterable[Any]) -> tuple[wire.Parameters, ...]:
    """Return the totals of the parameters of these optimizers by device and dtype, the largest first."""
    return _totals(_parameters(optimizers))


def state(optimizers: Iterable[Any]) -> tuple[wire.Parameters, ...]:
    """Return the totals of the state of these optimizers (momenta, master copies), the largest first."""
    return _totals(
        value
        for optimizer in optimizers
        for entry in tuple(getattr(optimizer, "state", {}).values())
        if isinstance(entry, dict)
        for value in tuple(entry.values())
        if isinstance(value, torch.Tensor)
    )


def sharding(optimizers: Iterable[Any]) -> str | None:
    """Return the kind of sharding of the parameters: fsdp (flat), dtensor (FSDP2, tensor parallelism), or None."""
    for parameter in _parameters(optimizers):
        if type(parameter).__name__ == "FlatParameter" or getattr(parameter, "_is_flat_param", False):
            return "fsdp"
        if hasattr(parameter, "_local_tensor"):
            return "dtensor"
    return None


def first_trained(optimizers: Iterable[Any]) -> Any:
    """Return the first parameter with gradients, None without one."""
    return next((parameter for parameter in _parameters(optimizers) if parameter.requires_grad), None)


def trained(optimizers: Iterable[Any]) -> list[Any]:
    """Return the parameters with gradients."""
    return [parameter for parameter in _parameters(optimizers) if parameter.requires_grad]


def sole_device(found: tuple[wire.Parameters, ...]) -> str | None:
    """Return the device of all parameters, None if there are several or none."""
    places = {entry.device for entry in found}
    return places.pop() if len(places) == 1 else None


def device_of(batch: Any) -> str | None:
    """Return the device of the first tensor of a batch, as torch names it; None without one."""
    waiting = [batch]
    for _ in range(_MAX_PARTS):
        if not waiting:
            break
        part = waiting.pop(0)
        if isinstance(part, torch.Tensor):
            return str(part.device)
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return None


def version(parameter: Any) -> tuple[int, int]:
    """Return the identity of a parameter, and a number that changes with every write to it."""
    tensor = getattr(parameter, "_local_tensor", parameter)
    return id(parameter), tensor._version  # noqa: SLF001 - documented in spite of its name


def _parameters(optimizers: Iterable[Any]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            yield from group["params"]


def _totals(tensors: Iterable[Any]) -> tuple[wire.Parameters, ...]:
    totals: dict[tuple[str, str], list[int]] = {}
    seen = set()
    for tensor in tensors:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        # Of a DTensor (FSDP2) the shard of this process counts.
        local = getattr(tensor, "_local_tensor", tensor)
        if torch.nn.parameter.is_lazy(local):
            continue  # it has no shape before the first batch
        total = totals.setdefault((str(local.device), str(local.dtype).replace("torch.", "")), [0, 0, 0])
        elements = local.numel()
        total[0] += 1
        total[1] += elements
        total[2] += elements * local.element_size()
    ordered = sorted(totals.items(), key=lambda item: item[1][2], reverse=True)
    return tuple(wire.Parameters(*key, *total) for key, total in ordered[: wire.MAX_ENTRIES // 4])
