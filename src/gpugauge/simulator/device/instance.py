"""The MIG devices of a simulated GPU: one compute instance in each GPU instance."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from gpugauge.simulator.device.activity import Process

PROFILE = re.compile(r"([1-7])g\.(\d+)gb")
# Features that a GPU with MIG enabled lacks.
MIG_LACKS = ("utilization",)
_FIRST_INSTANCE_ID = 7  # of a GPU instance with a profile of one slice


class Instance:
    """A MIG device between two seconds of the scenario."""

    def __init__(self, plain: Mapping[str, Any], figures: Mapping[str, Any], seed: str, number: int) -> None:
        self.slices = int(plain["profile"][0])
        self.start: float = plain["start"]
        self.end: float = float("inf") if plain["end"] is None else plain["end"]
        self.gpu_instance_id, self.compute_instance_id = _FIRST_INSTANCE_ID + number, 0
        digest = hashlib.sha256(f"{seed}/{number}".encode()).hexdigest()
        self.uuid = f"MIG-{grouped(digest)}"
        self.name = f"{figures['name']} MIG {plain['profile']}"
        self.sm_count = self.slices * figures["mig_slice_sms"]
        self.memory_total = memory_of(plain["profile"])
        self.memory_reserved = 25 << 20
        self.processes: tuple[Process, ...] = ()

    def alive(self, t: float) -> bool:
        """Return whether the MIG device exists at `t`."""
        return self.start <= t < self.end

    def memory_used(self, t: float) -> int:
        """Return the bytes that processes hold, without those that the driver reserves."""
        return sum(p.memory or 0 for p in self.processes if p.activity.alive(t))

    def busy(self, t: float) -> float:
        """Return the seconds in which a kernel ran."""
        return sum(p.activity.busy(t) for p in self.processes)

    def work(self, t: float) -> float:
        """Return the seconds at full power."""
        return sum(p.activity.busy(t) * p.activity.intensity for p in self.processes)

    def moved(self, t: float) -> float:
        """Return the seconds in which the memory was read or written."""
        return sum(p.activity.busy(t) * p.activity.traffic for p in self.processes)


def grouped(digest: str) -> str:
    """Return hexadecimal digits as in a uuid."""
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def memory_of(profile: str) -> int:
    """Return the memory in bytes of a valid profile like 1g.10gb."""
    return int(profile.split(".")[1].removesuffix("gb")) * 1000 << 20


def instances(figures: Mapping[str, Any], seed: str, processes: tuple[Process, ...]) -> tuple[Instance, ...]:
    """Return the MIG devices of a GPU; `count` in the layout repeats an entry."""
    layout = [plain for plain in figures["mig"] for _ in range(plain["count"])]
    made = tuple(Instance(plain, figures, seed, number) for number, plain in enumerate(layout))
    for number, instance in enumerate(made):
        instance.processes = tuple(p for p in processes if p.instance == number)
    return made
