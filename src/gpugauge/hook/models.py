"""The models of the program: FLOPs of a token, the dtype of matrix products, parameters and optimizer state. A scan of
the parameters takes about 1 ms for 1,000 of them.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gpugauge.wire import messages as wire

_MAX_MODELS = 8  # the last ones; parts of a model can be among them
# Names of classes. Experts compute a part of the tokens each, a cross attention has tokens of two kinds, and the layers
# of ALBERT run several times.
_OTHER_COST = re.compile(r"moe|expert|router|mixture|cross|albert|^transformer(decoder(layer)?)?$", re.IGNORECASE)
_ATTENTION = re.compile(r"attention", re.IGNORECASE)
# Multiply-add of a weight: 2 FLOPs in the forward pass, 4 in the backward pass.
_FLOPS_OF_WEIGHT = 6


class Models:
    """References to the last models."""

    def __init__(self) -> None:
        self._seen: deque[weakref.ref[Any]] = deque(maxlen=_MAX_MODELS)

    def add(self, model: Any) -> None:
        """Add a model."""
        if not any(seen() is model for seen in self._seen):
            self._seen.append(weakref.ref(model))

    def of(self, trained: Iterable[Any]) -> Any:
        """Return the model of which exactly these parameters are trained, None if it is not known."""
        wanted = {id(parameter) for parameter in trained}
        models = [model for seen in tuple(self._seen) if (model := seen()) is not None]
        for model in models if wanted else ():
            if {id(parameter) for parameter in model.parameters() if parameter.requires_grad} == wanted:
                return model
        return None


def flops_of_token(model: Any) -> int | None:
    """Return the FLOPs of a token in a dense transformer that is all trained, without attention scores; else None."""
    kinds = {type(part).__name__ for part in model.modules()}
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) or any(map(_OTHER_COST.search, kinds)):
        return None
    if not any(map(_ATTENTION.search, kinds)) or not all(p.requires_grad for p in model.parameters()):
        return None
    weights = [_weights(part) for part in model.modules()]
    return None if None in weights else _FLOPS_OF_WEIGHT * sum(weight or 0 for weight in weights) or None


def _weights(part: Any) -> int | None:
    """Return the number of weights of a part that multiply every token; None for a part of another kind."""
    own = tuple(part.parameters(recurse=False))
    if isinstance(part, (torch.nn.Linear, torch.nn.MultiheadAttention)) or type(part).__name__ == "Conv1D":
        # Conv1D is the linear layer of GPT-2 in transformers. An output layer that shares the weights of the embedding
        # multiplies each token by them.
        return sum(int(parameter.numel()) for parameter in own if parameter.dim() == 2)
    if isinstance(part, torch.nn.Embedding) or all(parameter.dim() < 2 for parameter in own):
        return 0  # a look-up, and the factors and biases of norms
    return None


def matmul_dtype(trained: Iterable[Any], model: Any, autocast: str | None, rounded: str | None) -> str | None:
    """Return the dtype of most matrix products: that of `autocast`, or of the parameters. Of parameters in float32 only
    if they are those of a `model`, since some optimizers have copies; tf32 if `rounded` is yes. None if not known.
    """
    sizes: dict[str, int] = {}
    for parameter in trained:
        if parameter.dim() > 1:
            name = str(parameter.dtype).replace("torch.", "")
            sizes[name] = sizes.get(name, 0) + parameter.numel()
    dtype = max(sizes, key=sizes.__getitem__, default=None)
    if dtype is None or sizes[dtype] < 0.95 * sum(sizes.values()):
        return None
    if dtype != "float32":
        return dtype
    if autocast is not None:
        return autocast
    return {"yes": "tf32", "no": "float32"}.get(rounded or "") if model is not None else None


def states(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors of the state of these optimizers: momenta, master copies."""
    for optimizer in optimizers:
        for entry in tuple(getattr(optimizer, "state", {}).values()):
            values = tuple(entry.values()) if isinstance(entry, dict) else ()
            yield from (value for value in values if isinstance(value, torch.Tensor))


def sharding(optimizers: Iterable[Any]) -> str | None:
    """Return the kind of sharding of the parameters: fsdp (flat), dtensor (FSDP2, tensor parallelism), or None."""
    for parameter in parameters(optimizers):
        if type(parameter).__name__ == "FlatParameter" or getattr(parameter, "_is_flat_param", False):
            return "fsdp"
        if hasattr(parameter, "_local_tensor"):
            return "dtensor"
    return None


def trained(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the parameters with gradients."""
    return (parameter for parameter in parameters(optimizers) if parameter.requires_grad)


def version(parameter: Any) -> tuple[int, int]:
    """Return the identity of a parameter, and a number that changes with every write to it."""
    tensor = getattr(parameter, "_local_tensor", parameter)
    return id(parameter), tensor._version  # noqa: SLF001 - documented in spite of its name


def parameters(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the parameters of these optimizers."""
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            yield from group["params"]


def totals(tensors: Iterable[Any]) -> tuple[wire.Parameters, ...]:
    """Return the totals of the tensors by device and dtype, each tensor once, the largest first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        # Of a DTensor (FSDP2) the shard of this process counts.
        local = getattr(tensor, "_local_tensor", tensor)
        if torch.nn.parameter.is_lazy(local):
            continue  # it has no shape before the first batch
        total = sums.setdefault((str(local.device), str(local.dtype).replace("torch.", "")), [0, 0, 0])
        elements = local.numel()
        total[0] += 1
        total[1] += elements
        total[2] += elements * local.element_size()
    ordered = sorted(sums.items(), key=lambda item: item[1][2], reverse=True)
    return tuple(wire.Parameters(*key, *total) for key, total in ordered[: wire.MAX_ENTRIES // 4])
