"""The GPUs and processes of a scenario as functions of the time since its start, so that counters outlive a worker; the
functions that the library of a driver version exports, and the meaning of its field ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpugauge.simulator.device.activity import Process
from gpugauge.simulator.device.device import Device
from gpugauge.simulator.device.faults import Fault
from gpugauge.simulator.device.rings import UPTIME

# The first driver branch with each function, according to release notes and headers.
_SINCE = {
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetNumGpuCores": 510,
    "nvmlGpm*": 520,
    "nvmlDeviceGetNumaNodeId": 530,
    "nvmlDeviceGetCurrentClocksEventReasons": 535,
    "nvmlDeviceGetSupportedClocksEventReasons": 535,
    "nvmlDeviceGetJpgUtilization": 535,
    "nvmlDeviceGetOfaUtilization": 535,
    "nvmlDeviceGetFanSpeedRPM": 565,
    "nvmlDeviceGetTemperatureV": 570,
}
# The last field id of each branch; it rejects later ones.
_LAST_FIELD = ((470, 160), (515, 169), (525, 172), (535, 200), (550, 234), (570, 268), (580, 274))
# The throttle reasons with field ids that depend on the driver, in the order of the ids.
_THROTTLE_REASONS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


class Generation:
    """A driver version like 570.124.06."""

    def __init__(self, version: str) -> None:
        major, minor, *_ = [*(int(p) for p in version.split(".") if p.isdigit()), 0, 0]
        self._version = (major, minor)
        newest = self._version >= (580, 82)
        known = [last for branch, last in _LAST_FIELD if major >= branch] or [_LAST_FIELD[0][1]]
        self._last_field = 307 if newest else known[-1]
        self._first_throttle_field = 251 if (575, 0) <= self._version <= (580, 65) else 269 if newest else None

    def lacks(self, function: str) -> bool:
        """Return whether the library does not export a function."""
        return any(self._version[0] < since and fnmatchcase(function, name) for name, since in _SINCE.items())

    def has_field(self, number: int) -> bool:
        """Return whether the driver accepts a field id."""
        return number <= self._last_field

    def has_ring(self, engine: str) -> bool:
        """Return whether the driver has a sample ring of an engine."""
        return self._version[0] >= 535 or engine not in {"jpeg", "ofa"}

    def throttle_reason(self, number: int) -> str | None:
        """Return the throttle reason that a field id counts in this driver, None for other ids."""
        first = self._first_throttle_field
        if first is None or not first <= number < first + len(_THROTTLE_REASONS):
            return None
        return _THROTTLE_REASONS[number - first]


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
