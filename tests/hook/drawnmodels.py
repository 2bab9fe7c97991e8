"""Drawn models with the FLOPs of a training step counted by hand: a multiply-add is two FLOPs.

A product of matrices costs as much again for the gradient of its input, and for that of its weight. The gradient of the
first input is not computed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass
class Drawn:
    """A model, a loss of it as a function of a batch, a function that makes a batch, and the FLOPs of a step."""

    name: str
    model: Any
    loss: Callable[[Any], Any]
    batch: Callable[[], Any]
    flops: int  # of the weights
    attention: int = 0  # of the scores and of the weighted values
    tokens: int = 0

    @property
    def total(self) -> int:
        """The FLOPs of a step."""
        return self.flops + self.attention


def perceptron(draw: random.Random) -> Drawn:
    """Return layers of drawn widths."""
    rows, widths = draw.randint(1, 9), [draw.randint(1, 40) for _ in range(draw.randint(2, 6))]
    pairs = list(itertools.pairwise(widths))
    layers = [nn.Linear(a, b, bias=draw.random() < 0.5) for a, b in pairs]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.GELU())))
    products = [2 * rows * a * b for a, b in pairs]
    flops = sum(3 * product for product in products) - products[0]
    return Drawn("perceptron", model, lambda x: model(x).sum(), lambda: torch.randn(rows, widths[0]), flops)


def convolution(draw: random.Random) -> Drawn:
    """Return convolutions of drawn sizes, then a linear layer."""
    rows, side, channels, flops = draw.randint(1, 4), draw.randint(9, 17), draw.randint(1, 4), 0
    parts, shape = list[Any](), (rows, channels, side, side)
    for number in range(draw.randint(1, 3)):
        out, kernel, stride, padding = draw.randint(1, 9), draw.choice((1, 3)), draw.randint(1, 2), draw.randint(0, 1)
        parts += [nn.Conv2d(channels, out, kernel, stride, padding, bias=draw.random() < 0.5), nn.ReLU()]
        side = (side + 2 * padding - kernel) // stride + 1
        flops += (3 if number else 2) * 2 * rows * out * side * side * channels * kernel * kernel
        channels = out
    parts += [nn.Flatten(), nn.Linear(channels * side * side, 5)]
    flops += 3 * 2 * rows * channels * side * side * 5
    model = nn.Sequential(*parts)
    return Drawn("convolution", model, lambda x: model(x).sum(), lambda: torch.randn(shape), flops)


class SelfAttention(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """Attention, fused or as two products of matrices; several queries can share keys and values."""

    def __init__(self, width: int, heads: int, shared: int, fused: bool, bias: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.fused, self.size = heads, heads // shared, fused, width // heads
        self.query = nn.Linear(width, width, bias=bias)
        self.keys = nn.Linear(width, 2 * self.shared * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Any) -> Any:
        """Return the output of the layer."""
        rows, length, width = x.shape
        q = self.query(x).view(rows, length, self.heads, self.size).transpose(1, 2)
        k, v = self.keys(x).view(rows, length, 2, self.shared, self.size).permute(2, 0, 3, 1, 4)
        k, v = (t.repeat_interleave(self.heads // self.shared, 1) for t in (k, v))
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = (q @ k.transpose(-1, -2) / self.size**0.5).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """A layer of a transformer."""

    def __init__(self, attention: Any, width: int, inner: int, gated: bool, norm: Any) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = attention, norm(width), norm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.gate = nn.Linear(width, inner) if gated else None

    def forward(self, x: Any) -> Any:
        """Return the output of the layer."""
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        y = nn.functional.silu(self.gate(y)) * self.up(y) if self.gate is not None else nn.functional.gelu(self.up(y))
        return x + self.down(y)


class Language(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """A language model; the output layer can share the weights of the embedding."""

    def __init__(self, vocabulary: int, width: int, length: int, blocks: list[Any], tied: bool) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        """Return the logits."""
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def transformer(draw: random.Random, length: int | None = None) -> Drawn:
    """Return a dense transformer."""
    heads, layers, rows = draw.choice((1, 2, 4)), draw.randint(1, 4), draw.randint(1, 3)
    width, shared, length = heads * 2 * draw.randint(4, 24), draw.choice((1, heads)), length or draw.randint(2, 40)
    inner, vocabulary, gated = draw.randint(1, 4) * width, draw.randint(20, 300), draw.random() < 0.5
    fused, bias, norm = draw.random() < 0.5, draw.random() < 0.5, draw.choice((nn.LayerNorm, nn.RMSNorm))
    blocks = [Block(SelfAttention(width, heads, shared, fused, bias), width, inner, gated, norm) for _ in range(layers)]
    model = Language(vocabulary, width, length, blocks, draw.random() < 0.5)
    keys = 2 * (heads // shared) * (width // heads)
    weights = layers * width * (2 * width + keys + (3 if gated else 2) * inner) + width * vocabulary
    tokens = rows * length
    return Drawn(
        f"transformer{' fused' if fused else ''}",
        model,
        lambda ids: model(ids).float().logsumexp(-1).sum(),
        lambda: torch.randint(0, vocabulary, (rows, length)),
        flops=3 * 2 * tokens * weights,
        attention=3 * layers * 2 * (2 * tokens * length * width),
        tokens=tokens,
    )


torch.set_num_threads(1)  # small models
KINDS = (perceptron, convolution, transformer)


def drawn(seed: int) -> Drawn:
    """Return the model of a seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    return draw.choice(KINDS)(draw)
