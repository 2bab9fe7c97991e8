"""The snapshot of a tick: all sections, frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpugauge.metric import Family
from gpugauge.node.node import Node


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """The families of one collector; the same object again if no value changed, so that its bytes are reused."""

    collector: str
    families: tuple[Family, ...]


class Health(NamedTuple):
    """Result of the last run of a collector, or of a thread that has failed. `duration` is in seconds, None for a
    thread; `last_success` is a Unix time, 0 if there was none.
    """

    success: bool
    duration: float | None
    last_success: float
    failures: int
    error: str = ""


class LastReload(NamedTuple):
    """Result of the last reload of a file, and the Unix time of the last successful one."""

    successful: bool
    timestamp: float


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One tick: Unix and monotonic time, the sections, the health of every collector by name, and the typed values."""

    timestamp: float
    monotonic: float
    sections: tuple[Section, ...]
    health: dict[str, Health] = field(default_factory=dict)
    node: Node = field(default_factory=Node)
