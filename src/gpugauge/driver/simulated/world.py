"""What is true at a second of a scenario: cards and processes as pure functions of the time since its start.

A restarted worker that is given the same start therefore sees the same cards, counters included, and goes on.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpugauge.driver.simulated.faults import Fault
from gpugauge.driver.simulated.load import Load, load
from gpugauge.driver.simulated.presets import PRESETS

# How long the machine had been up, idle, when the scenario began: 10 days.
UPTIME = 864_000.0
_SAMPLE_PERIOD = 1 / 6  # of the utilization rates; nvml.h says 1/6 s to 1 s by product
_COOLING = 20.0  # seconds of work that the temperature remembers


class Activity:
    """Work on a card between two seconds of the scenario. `intensity` and `traffic` say how much of the power and of
    the memory's time a second of it takes: a kernel that only waits for a peer keeps a card busy and cold.
    """

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.start: float = plain["start"]
        self.end: float = float("inf") if plain["end"] is None else plain["end"]
        self.intensity: float = plain["intensity"]
        self.traffic: float = plain["traffic"]
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
    """A process of a job on some of the cards; `memory` in bytes on each, None if the driver does not tell."""

    def __init__(self, plain: Mapping[str, Any], pid: int, container_pid: int | None, gpus: tuple[int, ...]) -> None:
        self.pid, self.container_pid, self.gpus = pid, container_pid, gpus
        self.activity = Activity(plain)
        self.kind: str = plain["kind"]
        self.memory: int | None = plain["memory"]
        self.uid: int = plain["uid"]
        self.command: list[str] = shlex.split(plain["command"])
        self.cgroup: str = plain["cgroup"]
        self.environment: dict[str, str] = plain["environment"]


class Card:
    """One GPU and what runs on it."""

    def __init__(self, plain: Mapping[str, Any], index: int, seed: str, processes: tuple[Process, ...]) -> None:
        given = {key: value for key, value in plain.items() if value is not None}
        figures = {**PRESETS[plain["model"]], **given}
        digest = hashlib.sha256(f"{seed}/{index}".encode()).hexdigest()
        self.index = index
        self.uuid: str = figures.get("uuid") or "GPU-" + "-".join(
            (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
        )
        self.serial = str(int(digest[32:48], 16))[:13]
        self.bus_id = f"{index // 200:08X}:{0x10 + index % 200:02X}:00.0"
        self.name: str = figures["name"]
        self.vbios: str = figures["vbios"]
        self.architecture: int = figures["architecture"]
        self.compute_capability: tuple[int, int] = figures["compute_capability"]
        self.cores: int = figures["cores"]
        self.memory_total: int = figures["memory"]
        self.memory_reserved: int = figures["memory_reserved"]
        self.idle_watts: float = figures["idle_watts"]
        self.power_limit_watts: float = figures["power_limit_watts"]
        self._clocks = [figures["clock"], figures["clock"], figures["clock_memory"], figures["clock_video"]]
        self._idle_performance_state: int = figures["idle_performance_state"]
        self._unsupported: tuple[str, ...] = tuple(figures["unsupported"])
        self.unsupported_fields = frozenset[int](figures["unsupported_fields"])
        self.processes = tuple(p for p in processes if index in p.gpus)
        own = plain.get("load")
        background = {"start": 0.0, "end": None, "load": own, "intensity": 0.6, "traffic": 0.4}
        self._activities = [*([Activity(background)] if own else []), *(p.activity for p in self.processes)]

    def supports(self, function: str) -> bool:
        """Whether the card answers a function of the library."""
        return not any(fnmatchcase(function, pattern) for pattern in self._unsupported)

    def busy(self, t: float) -> float:
        """Seconds in which a kernel ran, from the start of the scenario to `t`."""
        return sum(a.busy(t) for a in self._activities)

    def utilization(self, t: float) -> tuple[int, int]:
        """Percent of the last sample period in which a kernel ran, and in which memory was read or written."""
        busy = moved = 0.0
        for a in self._activities:
            seconds = a.busy(t) - a.busy(t - _SAMPLE_PERIOD)
            busy += seconds
            moved += seconds * a.traffic
        return min(100, round(100 * busy / _SAMPLE_PERIOD)), min(100, round(100 * moved / _SAMPLE_PERIOD))

    def power(self, t: float) -> int:
        """Milliwatts, the mean over the last second."""
        return round(1000 * (self.idle_watts + self._dynamic_watts * (self._work(t) - self._work(t - 1))))

    def energy(self, t: float) -> int:
        """Millijoules since the machine booted."""
        return round(1000 * (self.idle_watts * (UPTIME + t) + self._dynamic_watts * self._work(t)))

    def temperature(self, t: float) -> int:
        """Degrees Celsius: 32 when idle, 45 more after a while at full power."""
        return round(32 + 45 * (self._work(t) - self._work(t - _COOLING)) / _COOLING)

    def clock(self, domain: int, t: float) -> int | None:
        """Megahertz of NVML's clock domain: graphics, SM, memory, video; None for an unknown domain."""
        if not 0 <= domain < len(self._clocks):
            return None
        busy, idle = self._clocks[domain]
        return busy if self._occupied(t) else idle  # type: ignore[no-any-return]

    def performance_state(self, t: float) -> int:
        """0 with a process on the card."""
        return 0 if self._occupied(t) else self._idle_performance_state

    def memory_used(self, t: float) -> int:
        """Bytes that processes hold, without what the driver reserves."""
        return sum(p.memory or 0 for p in self.processes if p.activity.alive(t))

    def running(self, kind: str, t: float) -> list[Process]:
        """The processes of one of NVML's kinds: compute, graphics, mps."""
        return [p for p in self.processes if p.kind == kind and p.activity.alive(t)]

    @property
    def _dynamic_watts(self) -> float:
        return self.power_limit_watts - self.idle_watts

    def _work(self, t: float) -> float:
        return sum(a.busy(t) * a.intensity for a in self._activities)

    def _occupied(self, t: float) -> bool:
        return any(a.alive(t) for a in self._activities)


class World:
    """The machine of a scenario. `simulation` is plain data, made by `Scenario.simulation`."""

    def __init__(self, simulation: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        scenario = simulation["scenario"]
        self._clock = clock
        self._start: float = simulation["start"]["monotonic"]
        self.start_unix: float = simulation["start"]["unix"]
        self._frozen_at: float | None = scenario["frozen_at"]
        self.name: str = scenario["name"]
        self.driver_version: str = scenario["driver"]["version"]
        self.cuda_version: int = scenario["driver"]["cuda_version"]
        self._missing: list[str] = scenario["driver"]["missing"]
        count = sum(gpu["count"] for gpu in scenario["gpus"])
        self.processes = tuple(p for job in scenario["processes"] for p in _processes(job, count))
        plain_cards = [gpu for gpu in scenario["gpus"] for _ in range(gpu["count"])]
        self.cards = tuple(Card(plain, i, self.name, self.processes) for i, plain in enumerate(plain_cards))
        self.faults = [Fault(plain) for plain in scenario["faults"]]

    def now(self) -> float:
        """Seconds since the scenario began."""
        return self.second(self._clock())

    def second(self, monotonic: float) -> float:
        """The second of the scenario at a time of CLOCK_MONOTONIC, which all processes of a machine share."""
        return monotonic - self._start if self._frozen_at is None else self._frozen_at

    def lacks(self, function: str) -> bool:
        """Whether the library of this driver does not export a function."""
        return any(fnmatchcase(function, pattern) for pattern in self._missing)


def _processes(job: Mapping[str, Any], gpu_count: int) -> Iterator[Process]:
    """A job is one process on all its cards, or `per_gpu` processes on each, numbered upwards from its pid."""
    gpus = tuple(range(gpu_count)) if job["gpus"] == "all" else tuple(job["gpus"])
    groups = [gpus] if job["per_gpu"] is None else [(gpu,) for gpu in gpus for _ in range(job["per_gpu"])]
    for i, group in enumerate(groups):
        container_pid = None if job["container_pid"] is None else job["container_pid"] + i
        yield Process(job, job["pid"] + i, container_pid, group)
