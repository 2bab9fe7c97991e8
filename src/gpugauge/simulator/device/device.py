"""One simulated GPU. Every reading is a pure function of the second of the scenario."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from operator import mul
from typing import Any

from gpugauge.simulator.device.activity import Activity, Process
from gpugauge.simulator.device.faults import Health
from gpugauge.simulator.device.instance import MIG_LACKS, Instance, grouped, instances
from gpugauge.simulator.device.presets import PRESETS, WITHOUT
from gpugauge.simulator.device.rings import UPTIME, Ring

_SAMPLE_PERIOD_SECONDS = 1 / 6  # of the utilization rates; nvml.h: 1/6 s to 1 s by product
# Of a kernel that waits for another rank: the share of the full power, and of the multiprocessors.
_SPINS_AT, _SPINS_ON = 0.2, 0.15
_COOLING_SECONDS = 20.0  # the temperature depends on the work in this time
NVLINK_BYTES = 120e9  # sent by all links in a second of memory traffic
PCIE_BYTES = 4e9  # read from the host in a busy second, by default
_PAGEABLE_BYTES = 8e9  # per second, of memory that is not pinned: what is received more than sent
_SENT_RATIO = 0.25  # bytes written to the host per byte read
# Bytes per second of a PCIe lane by generation, in one direction.
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_THROTTLES = {"thermal": "sw_thermal_slowdown", "power_cap": "sw_power_cap"}


class Device:
    """A GPU and the processes on it."""

    def __init__(self, plain: Mapping[str, Any], index: int, seed: str, processes: tuple[Process, ...]) -> None:
        given = {key: value for key, value in plain.items() if value is not None}
        figures = {**PRESETS[plain["model"]], **given}
        self.figures: Mapping[str, Any] = figures
        digest = hashlib.sha256(f"{seed}/{index}".encode()).hexdigest()
        self.index = index
        self.is_amd = "amd" in figures
        self.uuid: str = figures.get("uuid") or f"GPU-{digest[:16] if self.is_amd else grouped(digest)}"
        self.serial = str(int(digest[32:48], 16))[:13]
        self.bus_id = f"{index // 200:08X}:{0x10 + index % 200:02X}:00.0"
        self.name: str = figures["name"]
        self.memory_total: int = figures["memory"]
        self.memory_reserved: int = figures["memory_reserved"]
        self.processes = tuple(p for p in processes if index in p.gpus)
        self._slowed = [(p, p.activity.pipeline) for p in self.processes if p.activity.pipeline and index in p.works_on]
        self._idle_watts: float = figures["idle_watts"]
        self.default_limit_watts: float = PRESETS[plain["model"]]["power_limit_watts"]
        lowered = [self.default_limit_watts * p.clock for _, p in self._slowed if p.throttle == "power_cap"]
        self.power_limit_watts: float = min([figures["power_limit_watts"], *lowered])
        self._dynamic_watts: float = self.power_limit_watts - self._idle_watts
        self.health = Health(self._with_throttling(plain["health"]))
        self.ring = Ring(figures["ring"])
        self.lost_at = float("inf") if plain["lost_at"] is None else float(plain["lost_at"])
        self._back_at = float("inf") if plain["back_at"] is None else float(plain["back_at"])
        self._stays_on_bus: bool = plain["stays_on_bus"]
        self._gone_while_exists: str | None = plain["gone_while_exists"]
        self._plugged_at = float(plain["plugged_at"] or 0.0)
        self.clocks = [figures["clock"], figures["clock"], figures["clock_memory"], figures["clock_video"]]
        self.instances: tuple[Instance, ...] | None = (
            None if plain["mig"] is None else instances(figures, digest, self.processes)
        )
        lacks = [WITHOUT[name] for name in (*figures["lacks"], *(MIG_LACKS if self.instances is not None else ()))]
        self._unsupported = (*figures["unsupported"], *(f for functions, _ in lacks for f in functions))
        self.unsupported_fields = frozenset((*figures["unsupported_fields"], *(i for _, ids in lacks for i in ids)))
        # The work on a MIG device is a part of the work of the GPU.
        self._parts = [(p.on(index), self._share(p)) for p in self.processes]
        if plain["load"]:
            work = {"start": 0.0, "end": None, "load": plain["load"], "intensity": 0.6, "traffic": 0.4, "engines": {}}
            self._parts.insert(0, (Activity(work), 1.0))
        # Rings, counters and rates use the same seconds; the entries of a ring are read once per engine.
        self._spent = lru_cache(maxsize=self.ring.capacity + 2)(self._busy_by_part)
        # Bytes that all NVLinks have sent; as many are received. It is read once per link.
        self.nvlink_bytes = lru_cache(maxsize=1)(self._sent_by_links)
        used = {name for a, _ in self._parts for name, share in a.engines.items() if share}
        # By engine that something uses: the function that counts its busy seconds.
        self.engines = {name: self._counter(name) for name in used}
        changes = {x for i in self.instances or () for x in (i.start, i.end) if 0 < x < float("inf")}
        # Driver events in order: second, type, data.
        self.events = sorted([*self.health.events(), *((at, "mig", 0) for at in changes)])

    def supports(self, function: str) -> bool:
        """Return whether the GPU supports a function of the library."""
        return not any(fnmatchcase(function, pattern) for pattern in self._unsupported)

    def present(self, t: float) -> bool:
        """Return whether the driver enumerates the GPU. A library that was opened before it was added does not."""
        gone = self._gone_while_exists is not None and os.path.lexists(self._gone_while_exists)
        return self._plugged_at <= t and not self.lost_at <= t < self._back_at and not gone

    def on_bus(self, t: float) -> bool:
        """Return whether the GPU is on the bus."""
        return self.present(t) or (self._stays_on_bus and self._plugged_at <= t)

    def busy(self, t: float) -> float:
        """Return the seconds in which a kernel ran, from the start of the scenario to `t`."""
        return sum(self._spent(t))

    def idle(self, t: float) -> float:
        """Return the seconds in which no kernel ran. Instances compute at the same time, processes by turns."""
        spent = self._spent(t)
        return t - (sum(spent) if self.instances is None else max(spent, default=0.0))

    def utilization(self, t: float, engine: str = "gpu") -> int:
        """Return the percentage of the last sample period in which an engine was busy."""
        busy = self.engines.get(engine)
        if busy is None:
            return 0
        return min(100, round(100 * (busy(t) - busy(t - _SAMPLE_PERIOD_SECONDS)) / _SAMPLE_PERIOD_SECONDS))

    def power(self, t: float) -> int:
        """Return the power in milliwatts, the mean over the last second."""
        return round(1000 * (self._idle_watts + self._dynamic_watts * (self.work(t) - self.work(t - 1))))

    def power_now(self, t: float) -> int:
        """Return the power in milliwatts, the mean over the last 0.1 s."""
        return round(1000 * (self._idle_watts + self._dynamic_watts * 10 * (self.work(t) - self.work(t - 0.1))))

    def energy(self, t: float) -> int:
        """Return the energy in millijoules since the driver was loaded."""
        return round(
            self.since_reset(lambda s: 1000 * (self._idle_watts * (UPTIME + s) + self._dynamic_watts * self.work(s)), t)
        )

    def temperature(self, t: float) -> int:
        """Return degrees Celsius: those of the scenario, or 32 when idle and up to 45 more at full power."""
        given = self.health.temperature(t)
        if given is not None:
            return given
        return round(32 + 45 * (self.work(t) - self.work(t - _COOLING_SECONDS)) / _COOLING_SECONDS)

    def clock(self, domain: int, t: float) -> int | None:
        """Return megahertz of a clock domain (graphics, SM, memory, video); None for an unknown domain."""
        if not 0 <= domain < len(self.clocks):
            return None
        busy, idle = map(int, self.clocks[domain])
        if not self.occupied(t):
            return idle
        # Thermal and power limits lower the clocks of the multiprocessors, not those of the memory.
        slowed = [p.clock for process, p in self._slowed if process.activity.alive(t)] if domain < 2 else []
        return round(busy * min(slowed, default=1.0))

    def performance_state(self, t: float) -> int:
        """Return the performance state: 0 with a process on the GPU."""
        return 0 if self.occupied(t) else self.figures["idle_performance_state"]

    def clocks_event_reasons(self, t: float) -> set[str]:
        """Return the reasons in the scenario, and `gpu_idle`."""
        return self.health.throttled(t) | (set() if self.occupied(t) else {"gpu_idle"})

    def memory_used(self, t: float) -> int:
        """Return the bytes that processes hold, without those that the driver reserves."""
        return sum(p.memory or 0 for p in self.processes if p.activity.alive(t))

    def running(self, kind: str, t: float) -> list[Process]:
        """Return the processes of a kind: compute, graphics, mps."""
        return [p for p in self.processes if p.kind == kind and p.activity.alive(t)]

    def nvlink_up(self, link: int, t: float) -> bool | None:
        """Return whether an NVLink is up: False for one that is only answered for, None for one without an answer."""
        links = self.figures["nvlinks"]
        if 0 <= link < links:
            return not self.health.nvlink_down(link, t)
        return False if links <= link < links + self.figures["nvlinks_absent"] else None

    def _sent_by_links(self, t: float) -> int:
        return round(self.since_reset(lambda s: self.moved(s) * NVLINK_BYTES, t)) if self.figures["nvlinks"] else 0

    def work(self, t: float) -> float:
        """Return the seconds at full power."""
        spun = sum(a.spun(t) * share for a, share in self._parts)
        return sum(busy * a.intensity * share for busy, (a, share) in self._each(t)) + _SPINS_AT * spun

    def moved(self, t: float) -> float:
        """Return the seconds in which memory was read or written."""
        return sum(busy * a.traffic * share for busy, (a, share) in self._each(t))

    def sm_active(self, t: float) -> float:
        """Return the seconds in which multiprocessors were in use, each second weighted by their share."""
        spun = sum(a.spun(t) for a, _ in self._parts)
        return sum(busy * a.sm_active for busy, (a, _) in self._each(t)) + _SPINS_ON * spun

    def tensor_active(self, t: float) -> float:
        """Return the seconds of work of the tensor cores."""
        return sum(busy * a.tensor_active for busy, (a, _) in self._each(t))

    def received(self, t: float) -> float:
        """Return the bytes received over PCIe."""
        generation, width = self.pcie(t)
        link = _LANE_BYTES[generation] * width  # per second
        carried = {True: link, False: min(link, _PAGEABLE_BYTES / (1.0 - _SENT_RATIO))}  # by whether memory is pinned
        return sum(
            busy * (PCIE_BYTES if a.link is None else a.link * carried[a.pinned]) for busy, (a, _) in self._each(t)
        )

    def sent(self, t: float) -> float:
        """Return the bytes sent over PCIe."""
        return _SENT_RATIO * self.received(t)

    def pcie(self, t: float) -> tuple[int, int]:
        """Return generation and width of the PCIe link."""
        (generation, width), (lower, narrower) = self.figures["pcie"], self.health.pcie(t)
        return lower or generation, narrower or width

    def since_reset(self, total: Callable[[float], float], t: float) -> float:
        """Return a hardware counter, which starts again at `counters_reset_at` of the scenario."""
        at = self.health.counters_reset_at
        return total(t) - total(at) if at is not None and t >= at else total(t)

    def _busy_by_part(self, t: float) -> tuple[float, ...]:
        return tuple([a.busy(t) for a, _ in self._parts])

    def _each(self, t: float) -> Iterable[tuple[float, tuple[Activity, float]]]:
        """Return the busy seconds of each part, without those of kernels that only wait."""
        worked = (busy - a.spun(t) for busy, (a, _) in zip(self._spent(t), self._parts, strict=True))
        return zip(worked, self._parts, strict=True)

    def _counter(self, name: str) -> Callable[[float], float]:
        shares = [a.engines.get(name, 0.0) for a, _ in self._parts]
        return lambda t: sum(map(mul, self._spent(t), shares))

    def occupied(self, t: float) -> bool:
        """Return whether a process is alive, or the GPU has work without one."""
        return any(a.alive(t) for a, _ in self._parts)

    def _with_throttling(self, health: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `health` with the periods in which a training runs at lower clocks."""
        spells = {
            p.throttle: {"reason": _THROTTLES[p.throttle], "start": on.activity.start, "end": on.activity.end}
            for on, p in self._slowed
            if p.clock < 1.0
        }
        return {**health, "throttling": [*health["throttling"], *spells.values()]}

    def _share(self, process: Process) -> float:
        if not self.instances or process.instance is None:
            return 1.0
        return self.instances[process.instance].slices / 7
