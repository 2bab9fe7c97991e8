"""Peak rates of GPUs by product and dtype: dense matrix products (half of NVIDIA's rates with sparsity), at the boost
clock, float16 with accumulation in float32, tf32 by tensor cores, float32 without them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_MAKER = re.compile(r"^(NVIDIA |Tesla )+")


@dataclass(frozen=True)
class Peak:
    """The rates of a product in TFLOP/s, and its name as torch and the driver give it, without its maker."""

    name: str  # a regular expression for the whole name
    float32: float
    tf32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None

    @property
    def tensor_speedup(self) -> float:
        """The fastest rate of the tensor cores, by that of float32 without them."""
        return max(self.tf32 or 0.0, self.bfloat16 or 0.0, self.float16 or 0.0, self.float32) / self.float32

    def matches(self, name: str) -> bool:
        """Return whether a full name is of this product."""
        return re.fullmatch(self.name, _MAKER.sub("", name)) is not None


def peaks_of(vendor: str) -> tuple[Peak, ...]:
    """Return the products of a vendor by its name; peaks.json has the source of each."""
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))[vendor]
    return tuple(Peak(*row) for part in table for row in part["peaks"])


DTYPES = ("float32", "tf32", "bfloat16", "float16")
