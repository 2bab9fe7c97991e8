"""The GPUs and processes of a scenario as functions of the time since its start, so that counters outlive a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpugauge.simulator.device.activity import Process
from gpugauge.simulator.device.device import Device
from gpugauge.simulator.device.faults import Fault
from gpugauge.simulator.device.generation import Generation
from gpugauge.simulator.device.rings import UPTIME

__all__ = ["UPTIME", "Device", "Process", "World"]


class World:
    """The machine of a scenario. `simulation` is the plain data of `Scenario.simulation`."""

    def __init__(self, simulation: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        scenario = simulation["scenario"]
        self._clock = clock
        self._start: float = simulation["start"]["monotonic"]
        self.start_unix: float = simulation["start"]["unix"]
        self.name: str = scenario["name"]
        self.host: str = scenario["host"] or self.name
        self.driver_version: str = scenario["driver"]["version"]
        self.cuda_version: int = scenario["driver"]["cuda_version"]
        self.foreign_events: bool = scenario["driver"]["foreign_events"]
        self.generation = Generation(self.driver_version)
        self._missing: list[str] = scenario["driver"]["missing"]
        count = sum(gpu["count"] for gpu in scenario["gpus"])
        self.processes = tuple(p for job in scenario["processes"] for p in _processes(job, count))
        plain_devices = [gpu for gpu in scenario["gpus"] for _ in range(gpu["count"])]
        self.devices = tuple(Device(plain, i, self.name, self.processes) for i, plain in enumerate(plain_devices))
        self.faults = [Fault(plain) for plain in scenario["faults"]]

    def now(self) -> float:
        """Return the seconds since the start of the scenario."""
        return self.second(self._clock())

    def second(self, monotonic: float) -> float:
        """Return the second of the scenario at a time of CLOCK_MONOTONIC, which is the same in all processes."""
        return monotonic - self._start

    def lacks(self, function: str) -> bool:
        """Return whether the library of the driver does not export a function."""
        return self.generation.lacks(function) or any(fnmatchcase(function, pattern) for pattern in self._missing)


def _processes(job: Mapping[str, Any], gpu_count: int) -> Iterator[Process]:
    """Yield the processes of a job: one on all its GPUs, or `per_gpu` on each GPU, with consecutive pids."""
    gpus = tuple(range(gpu_count)) if job["gpus"] == "all" else tuple(job["gpus"])
    groups = [gpus] if job["per_gpu"] is None else [(gpu,) for gpu in gpus for _ in range(job["per_gpu"])]
    for rank, group in enumerate(groups):
        yield Process(job, group, rank, len(groups))
