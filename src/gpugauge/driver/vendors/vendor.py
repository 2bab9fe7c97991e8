"""The facts about the GPUs of one vendor that need no library: their words, repairs, codes of errors and rates. Peak
rates are by product and dtype: dense matrix products (half of NVIDIA's rates with sparsity), at the boost clock,
float16 with accumulation in float32, tf32 by tensor cores, float32 without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
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
    table = json.loads(Path(__file__).with_name("peaks.json").read_text(encoding="utf-8"))[vendor]
    return tuple(Peak(*row) for part in table for row in part["peaks"])


DTYPES = ("float32", "tf32", "bfloat16", "float16")


RESTART = (
    "what ran during the memory errors may have computed with wrong data: after the repair, start it from a checkpoint "
    "before them"
)
"""Said of faulty memory, whatever else is wrong with the GPU."""
# Where more is needed, the driver says so: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
UNCORRECTED = f"check the kernel log for {{errors}}; {RESTART}; {{later}}; then {{reset}}"
LINK = (
    "check the link and the GPU or switch at its other end ({links}); {later}; {reset_all}; if the errors return, have "
    "the parts replaced"
)
# What depends on the node, and what repairs a GPU, is filled in later (faults/repair.py).
_OF_NODE = {name: f"{{{name}}}" for name in ("later", "hand", "reset", "reset_all", "reboot", "power", "forget")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vendor:
    """What stands above the driver knows a vendor by this only. Advice has names of `words` in braces, see fill()."""

    name: str
    worker: str  # the module that a worker process runs
    build: str  # the fact of a torch build for its GPUs: cuda
    events: str  # the name of its source of events in metrics, "" without one
    tool: str  # the program of its driver
    words: Mapping[str, str]
    opening: Mapping[str, str]  # what to do about a driver that is down, by reason
    recovery: Mapping[str, tuple[str, str]]  # by action of RECOVERY_ACTIONS: what it is, in words, and the advice
    error_classes: tuple[str, ...]  # of the numbered errors that its driver reports
    error_labels: Callable[[int], tuple[str, ...]]  # of one: code, class and name
    in_log: Container[int]  # the codes whose severity only the kernel log has
    error_advice: Mapping[str, str]  # by class or code, about an error that is not repaired
    min_drivers: Mapping[int, int]  # by major version of the toolkit of a build; enough for all minor versions
    peaks: tuple[Peak, ...]
    lacks: tuple[str, ...]  # patterns of metrics that none of its GPUs has
    unbuilt: Container[object] = ()  # architectures of GPUs that no build of torch is for

    def fill(self, text: str, index: object = "") -> str:
        """Return a text with the words in it filled in, for the GPU with an index; `{reset}` and the like stay."""
        return text.format(index=index, **_OF_NODE, **{n: w.format(index=index) for n, w in self.words.items()})
