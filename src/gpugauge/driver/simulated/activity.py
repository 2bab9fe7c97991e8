"""What runs on simulated cards, as pure functions of the second of the scenario."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gpugauge.driver.simulated.load import Load, load


class Activity:
    """Work on a card between two seconds of the scenario. `intensity` and `traffic` say how much of the power and of
    the memory's time a second of it takes: a kernel that only waits for a peer keeps a card busy and cold. `engines`
    says the same of the video engines.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.start: float = plain["start"]
        self.end: float = float("inf") if plain["end"] is None else plain["end"]
        self.intensity: float = plain["intensity"]
        self.traffic: float = plain["traffic"]
        # How much of each engine's time a busy second takes, by the names of their sample rings.
        self.engines: dict[str, float] = {"gpu": 1.0, "memory": self.traffic, **plain["engines"]}
        self._load: Load | None = load(plain["load"]) if plain["load"] else None
        self._before = self._load.integral(self.start) if self._load else 0.0

    def alive(self, t: float) -> bool:
        """Whether it is there at `t`."""
        return self.start <= t < self.end

    def busy(self, t: float) -> float:
        """Seconds in which it kept a card busy, from its start to `t`."""
        if self._load is None or t <= self.start:
            return 0.0
        return self._load.integral(min(t, self.end)) - self._before


class Process:
    """A process of a job on some of the cards; `memory` in bytes on each, None if the driver does not tell. On cards
    with MIG it runs on the instance of that number.
    """

    def __init__(self, plain: Mapping[str, Any], pid: int, container_pid: int | None, gpus: tuple[int, ...]) -> None:
        self.pid, self.container_pid, self.gpus = pid, container_pid, gpus
        self.activity = Activity(plain)
        self.kind: str = plain["kind"]
        self.memory: int | None = plain["memory"]
        self.instance: int | None = plain["instance"]
        self.uid: int = plain["uid"]
        self.command: list[str] = shlex.split(plain["command"])
        self.cgroup: str = plain["cgroup"]
        self.environment: dict[str, str] = plain["environment"]
