"""Metric rows of the memory of trainings: growth, time until full, headroom, fragmentation, imbalance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpugauge.metric import Metric, Table
from gpugauge.node.node import Memory, OnDevice
from gpugauge.verdict.memory.trend import Growth

_device = Table[OnDevice]("process", "uuid")
_process = Table[Memory]("process")
_part = Table[Growth]("process", "part")
_T = TypeVar("_T")


def _bounds(table: Table[_T], name: str, text: str, read: Callable[[_T], Growth | None]) -> tuple[Metric, ...]:
    """Return the rows of a growth: its value, and its lower and upper bound."""

    def row(part: str, begin: str, value: Callable[[Growth], float]) -> Metric:
        return table.gauge(f"{name}{part}_bytes", begin + text, lambda s: value(g) if (g := read(s)) else None)

    return (
        row("", "", lambda g: g.expected),
        row("_lower", "Lower bound: ", lambda g: g.lower),
        row("_upper", "Upper bound: ", lambda g: g.upper),
    )


DEVICES: tuple[Metric, ...] = (
    *_bounds(
        _device,
        "training_memory_step_growth",
        "Bytes by which the memory of tensors grows from step to step, over the longest time in which it was steady. "
        "Absent while it does not grow, and where the samples do not decide it.",
        lambda d: d.growth,
    ),
    _device.gauge(
        "training_memory_full_seconds",
        "Time until the device memory is full if it goes on growing at the rate of the last minutes; absent without a "
        "growth.",
        lambda d: d.full_seconds,
    ),
    _device.gauge(
        "training_memory_headroom_bytes",
        "Device memory that tensors can take beyond their peak: free memory of the GPU within the limit of the "
        "process, and the part of the cache that was never needed.",
        lambda d: d.headroom,
    ),
    _device.gauge(
        "training_memory_fragmentation_ratio",
        "Share of the reserved device memory that tensors did not need even at their peak. Absent where the program "
        "resets the peak.",
        lambda d: d.fragmentation,
    ),
)
PROCESSES: tuple[Metric, ...] = (
    _process.gauge(
        "training_batch_headroom_ratio",
        "Factor by which the batch can grow until the device memory is full, if all memory that a step takes and "
        "returns grows with the batch.",
        lambda p: p.batch_ratio,
    ),
    _process.gauge(
        "training_memory_rank_ratio",
        "Peak memory of the tensors of a rank, by that of the middle rank of its job on this node.",
        lambda p: p.rank_ratio,
    ),
    _process.gauge(
        "training_host_memory_full_seconds",
        "Time until the memory of the process's cgroup reaches its limit if it goes on growing at the rate of the last "
        "minutes; absent without a limit or a growth.",
        lambda p: p.full_seconds,
    ),
)
PARTS: tuple[Metric, ...] = _bounds(
    _part,
    "training_host_memory_growth",
    "Bytes by which host memory grows in each second, over the longest time in which it was steady: anonymous memory "
    "of the process and of its children, such as loader workers, and memory of its cgroup that cannot be reclaimed. "
    "Absent while it does not grow, and where the samples do not decide it.",
    lambda g: g,
)
