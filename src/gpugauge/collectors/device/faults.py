"""The Xid errors of GPUs whose fault has not been repaired, and how a repair is noticed.

A reset of the GPU, and a load of the driver, restart the counters that the driver keeps since its load. Drivers from
R565 on report a recovery action, which is none after the repair. A reboot is another boot id.
"""

from __future__ import annotations

import logging
import math

from gpugauge.base.logline import fields
from gpugauge.collectors.device.gpufaults import Counter, FaultFile, GpuFaults, Marks, OpenError
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.driver.vendors.nvidia import LASTING, LINKED

log = logging.getLogger("gpugauge.events")

_ENERGY = "energy"
_SAVE_SECONDS = 3600.0  # the counter in the file may be this old
_CLOCK_SECONDS = 1.0  # by which the clock is set at least


class Faults:
    """The errors that are not repaired. A daemon stores them in its file for the next one."""

    def __init__(self, file: FaultFile | None = None) -> None:
        self._file = file or FaultFile(None)
        self._gpus, marks = self._file.load()
        self.read_until = marks.log
        """The time until which an earlier daemon has processed the kernel log, in the kernel's seconds."""
        self.processed_until = self.read_until
        self._loaded = self._observed = 0.0
        self._boot = marks.booted
        self._saved = self._plain()
        self._next_save = 0.0

    def of(self, uuid: str) -> dict[int, float]:
        """Return the Unix times of the errors of a GPU by Xid code."""
        gpu = self._gpus.get(uuid)
        return {xid: error.first for xid, error in gpu.xids.items()} if gpu else {}

    def follow_clock(self, boot: float) -> None:
        """Move all times with the clock if it was set; `boot` is the Unix time of the boot by the present clock."""
        if self._boot is None:
            self._boot = boot
        moved = boot - self._boot
        if abs(moved) < _CLOCK_SECONDS:
            return
        self._boot = boot
        self._loaded += moved if self._loaded else 0.0
        self._observed += moved if self._observed else 0.0
        for gpu in self._gpus.values():
            gpu.move(moved)

    def rename(self, former: str, uuid: str) -> None:
        """Give the errors of a GPU to its uuid, which has become known."""
        gpu = self._gpus.pop(former, None)
        if gpu:
            known = self._gpus.setdefault(uuid, GpuFaults())
            known.repaired = max(known.repaired, gpu.repaired)
            known.xids = gpu.xids | known.xids

    def record(self, uuid: str, xid: int, at: float, *, live: bool = True) -> None:
        """Add an error, unless it lasts no longer than its report, or may have been repaired before the start."""
        gpu = self._gpus.setdefault(uuid, GpuFaults())
        if xid in LASTING and (live or self.read_until or at > gpu.repaired):
            known = gpu.xids.get(xid)
            gpu.xids[xid] = OpenError(at, min(at, known.first) if known else at)

    def driver_loaded(self, at: float) -> None:
        """Close the errors of all GPUs: the driver was loaded at this Unix time."""
        self._loaded = at
        for uuid in self._gpus:
            self.over(uuid, at)

    def over(self, uuid: str, at: float, until: float = math.inf) -> None:
        """Close the errors of a GPU, or those that were reported until a Unix time: they were repaired at `at`."""
        gpu = self._gpus.setdefault(uuid, GpuFaults())
        gpu.repaired = max(gpu.repaired, at)
        gpu.repair(until)

    def observe(self, devices: tuple[Device, ...], timestamp: float) -> None:
        """Notice repairs in the readings, and store what has changed."""
        for device in devices:
            if device.up:
                gpu = self._gpus.setdefault(device.uuid, GpuFaults())
                restarted = self._restarted(gpu, device, timestamp)
                if restarted is not None:
                    self._repaired(device, "its counters restarted", restarted)
                self._check_action(gpu, device)
        plain = self._plain()
        if plain != self._saved or (timestamp >= self._next_save and any(gpu.xids for gpu in self._gpus.values())):
            self._file.save(self._gpus, Marks(self.processed_until, self._boot))
            self._saved, self._next_save = plain, timestamp + _SAVE_SECONDS
        self._observed = timestamp

    def _restarted(self, gpu: GpuFaults, device: Device, timestamp: float) -> float | None:
        """Return the Unix time at which the counters were first seen restarted, if this reading confirms it."""
        generation = device.generations.get("normal", 0)
        if generation == gpu.generation:
            return None
        gpu.generation = generation
        found = _since_load(device.reading)
        for name, value in found.items():
            gpu.counters.setdefault(name, Counter(value, timestamp))
        # The others count little on many GPUs, and each of them may be absent or wrong in a reading.
        names = [_ENERGY] if _ENERGY in gpu.counters else list(gpu.counters)
        restarted = [counter for name in names if (counter := gpu.counters[name]).restarted(found.get(name), timestamp)]
        if not restarted:
            return None
        gpu.counters = {name: Counter(value, timestamp) for name, value in found.items()}
        first = min(restarted, key=lambda counter: counter.at)
        # A load of the driver is known by its own time: an error after it is not repaired.
        return self._loaded if self._loaded and first.before <= self._loaded <= first.at else first.at

    def _check_action(self, gpu: GpuFaults, device: Device) -> None:
        """Close errors by the recovery action: all when it ends, and those that it covers while there is none."""
        action, generation = device.reading.recovery_action, device.generations.get("slow", 0)
        if action is None:
            return
        if action == "none" and gpu.action not in {"none", None}:
            # An error since the last tick may have come after the reading.
            self._repaired(device, "the driver requires no action any more", self._observed)
        gpu.action = action
        for error in gpu.xids.values():
            if error.reading is None:
                error.reading = generation + 2  # the next one may have begun before the error
        if action == "none":
            covered = {xid for xid, error in gpu.xids.items() if error.reading is not None} & LINKED
            gpu.repair(math.inf, frozenset(x for x in covered if generation >= (gpu.xids[x].reading or 0)))

    def _repaired(self, device: Device, why: str, at: float) -> None:
        known = self.of(device.uuid)
        self.over(device.uuid, at, until=at)
        if closed := sorted(known.keys() - self.of(device.uuid).keys()):
            named = ", ".join(map(str, closed))
            log.info("Xid %s: repaired, %s", named, why, extra=fields(index=device.reading.index, uuid=device.uuid))

    def _plain(self) -> object:
        gpus = {uuid: (self.of(uuid), gpu.repaired) for uuid, gpu in self._gpus.items() if gpu.xids or gpu.repaired}
        return gpus, self.processed_until, self._boot and round(self._boot)


def _since_load(reading: DeviceReading) -> dict[str, float]:
    """Return the counters that only a reset or a load of the driver restarts, by name."""
    counters = {name: float(value) for name, value in (reading.clocks_event_nanoseconds or {}).items()}
    if reading.energy_millijoules is not None:
        counters[_ENERGY] = float(reading.energy_millijoules)
    return counters
