"""The models of the program, as far as calls of theirs show them: FLOPs of a token, and the dtype of matrix products.

A model is known by Module.to() or cuda(), by a wrapper (DistributedDataParallel), or as a model of transformers.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

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
    """Return the FLOPs of a token in a dense transformer whose weights are all trained, without those of the attention
    scores. None for other models.
    """
    kinds = {type(part).__name__ for part in model.modules()}
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) or any(map(_OTHER_COST.search, kinds)):
        return None
    weights = [_weights(part) for part in model.modules()]
    known = [weight for weight in weights if weight is not None]
    attention, trained = any(map(_ATTENTION.search, kinds)), all(p.requires_grad for p in model.parameters())
    return _FLOPS_OF_WEIGHT * sum(known) or None if attention and trained and len(known) == len(weights) else None


def _weights(part: Any) -> int | None:
    """Return the number of weights of a part that multiply every token; None for a part of another kind."""
    own = list(part.parameters(recurse=False))
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
