"""What the sampler publishes once a tick: frozen, complete, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpugauge.metric import Family


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """The families of one collector. A collector whose values did not change returns the same object again, and the
    exposition then reuses its bytes.
    """

    collector: str
    families: tuple[Family, ...]


@dataclass(frozen=True, slots=True)
class Health:
    """How a collector's last run went; times in seconds, `last_success` as Unix time or 0 if it never succeeded."""

    success: bool
    duration: float
    last_success: float
    failures: int
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One tick: Unix time, monotonic time, the sections, and the health of every collector by name."""

    timestamp: float
    monotonic: float
    sections: tuple[Section, ...]
    health: dict[str, Health] = field(default_factory=dict)
