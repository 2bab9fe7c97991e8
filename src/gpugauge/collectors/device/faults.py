"""The Xid errors of GPUs whose fault has not been repaired, and how a repair is noticed.

A reset of the GPU, and a load of the driver, restart the counters that the driver keeps since its load. Drivers from
R565 on report a recovery action, which is none after the repair. A reboot is another boot id.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpugauge import jsonfile
from gpugauge.collectors.device.xids import LASTING, LINKED
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.logline import Condition, fields

log = logging.getLogger("gpugauge.events")

_FORMAT = 1
_ENERGY = "energy"
_SAVE_SECONDS = 3600.0  # the counter in the file may be this old


@dataclass(slots=True)
class _Open:
    """An error that is not repaired: Unix time, and the reading of the recovery action that began after it."""

    at: float
    reading: int | None = None


@dataclass(slots=True)
class _Counter:
    """A counter that a reset restarts, and the Unix time of the first reading after it. One lower reading alone may be
    a wrong value. The driver's part leaves out such a reading, so the reset may be before a reading without the value.
    """

    value: float
    lower: float | None = None
    at: float = 0.0
    absent_at: float | None = None  # of the reading before this one, if the value was absent

    def restarted(self, value: float | None, timestamp: float) -> bool:
        """Return whether this reading and the one before it are lower than an earlier one."""
        absent_at, self.absent_at = self.absent_at, None
        if value is None:
            self.absent_at = timestamp
        elif value >= self.value:
            self.value, self.lower = value, None
        elif self.lower is None or value < self.lower:
            self.lower, self.at = value, timestamp if absent_at is None else absent_at
        else:
            return True
        return False


@dataclass(slots=True)
class _Gpu:
    """The errors of one GPU by Xid code, the Unix time of its last repair, and by name the counters that a reset
    restarts.
    """

    xids: dict[int, _Open] = field(default_factory=dict)
    repaired: float = 0.0
    counters: dict[str, _Counter] = field(default_factory=dict)
    action: int | None = None
    generation: int | None = None

    def repair(self, at: float, codes: frozenset[int] = LASTING) -> None:
        """Close the errors until a Unix time."""
        self.xids = {xid: error for xid, error in self.xids.items() if xid not in codes or error.at > at}


class Faults:
    """The errors that are not repaired. A daemon stores them in its file for the next one."""

    def __init__(self, file: FaultFile | None = None) -> None:
        self._file = file or FaultFile(None)
        self._gpus = self._file.load()
        self._loaded = 0.0
        self._saved = self._plain()
        self._next_save = 0.0

    def of(self, uuid: str) -> dict[int, float]:
        """Return the Unix times of the errors of a GPU by Xid code."""
        gpu = self._gpus.get(uuid)
        return {xid: error.at for xid, error in gpu.xids.items()} if gpu else {}

    def record(self, uuid: str, xid: int, at: float) -> None:
        """Add an error, unless it lasts no longer than its report, or was repaired."""
        gpu = self._gpus.setdefault(uuid, _Gpu())
        if xid in LASTING and at > max(gpu.repaired, self._loaded):
            gpu.xids[xid] = _Open(at)

    def driver_loaded(self, at: float) -> None:
        """Close the errors of all GPUs: the driver was loaded at this Unix time."""
        self._loaded = max(self._loaded, at)
        for gpu in self._gpus.values():
            gpu.repair(at)

    def over(self, uuid: str, at: float) -> None:
        """Close the errors of a GPU: from this Unix time on the driver requires no action."""
        gpu = self._gpus.setdefault(uuid, _Gpu())
        gpu.repaired = max(gpu.repaired, at)
        gpu.repair(at)

    def observe(self, devices: tuple[Device, ...], timestamp: float) -> None:
        """Notice repairs in the readings, and store what has changed."""
        for device in devices:
            if device.up:
                gpu = self._gpus.setdefault(device.uuid, _Gpu())
                restarted = self._restarted(gpu, device, timestamp)
                if restarted is not None:
                    self._repaired(device, "its counters restarted", restarted)
                self._check_action(gpu, device, timestamp)
        plain = self._plain()
        if plain != self._saved or (timestamp >= self._next_save and any(gpu.xids for gpu in self._gpus.values())):
            self._file.save(self._gpus)
            self._saved, self._next_save = plain, timestamp + _SAVE_SECONDS

    def _restarted(self, gpu: _Gpu, device: Device, timestamp: float) -> float | None:
        """Return the Unix time at which the counters were first seen restarted, if this reading confirms it."""
        generation = device.generations.get("normal", 0)
        if generation == gpu.generation:
            return None
        gpu.generation = generation
        found = _since_load(device.reading)
        for name, value in found.items():
            gpu.counters.setdefault(name, _Counter(value))
        # The others count little on many GPUs, and each of them may be absent or wrong in a reading.
        names = [_ENERGY] if _ENERGY in gpu.counters else list(gpu.counters)
        restarted = [counter for name in names if (counter := gpu.counters[name]).restarted(found.get(name), timestamp)]
        if not restarted:
            return None
        gpu.counters = {name: _Counter(value) for name, value in found.items()}
        return min(counter.at for counter in restarted)

    def _check_action(self, gpu: _Gpu, device: Device, timestamp: float) -> None:
        """Close errors by the recovery action: all when it ends, and those that it covers while there is none."""
        action, generation = device.reading.recovery_action, device.generations.get("slow", 0)
        if action is None:
            return
        if action == 0 and gpu.action:
            self._repaired(device, "the driver requires no action any more", timestamp)
        gpu.action = action
        for error in gpu.xids.values():
            if error.reading is None:
                error.reading = generation + 2  # the next one may have begun before the error
        if action == 0:
            covered = {xid for xid, error in gpu.xids.items() if error.reading is not None} & LINKED
            gpu.repair(math.inf, frozenset(x for x in covered if generation >= (gpu.xids[x].reading or 0)))

    def _repaired(self, device: Device, why: str, at: float) -> None:
        known = self.of(device.uuid)
        self.over(device.uuid, at)
        if closed := sorted(known.keys() - self.of(device.uuid).keys()):
            named = ", ".join(map(str, closed))
            log.info("Xid %s: repaired, %s", named, why, extra=fields(index=device.reading.index, uuid=device.uuid))

    def _plain(self) -> object:
        return {uuid: (self.of(uuid), gpu.repaired) for uuid, gpu in self._gpus.items() if gpu.xids or gpu.repaired}


def _since_load(reading: DeviceReading) -> dict[str, float]:
    """Return the counters that only a reset or a load of the driver restarts, by name."""
    counters = {name: float(value) for name, value in (reading.clocks_event_nanoseconds or {}).items()}
    if reading.energy_millijoules is not None:
        counters[_ENERGY] = float(reading.energy_millijoules)
    return counters


class FaultFile:
    """The file at `path`; without a path nothing is stored. `boot` identifies the boot: another one is a repair. GPUs
    that only other daemons know are kept. A file that cannot be used is reported once, and replaced.
    """

    def __init__(self, path: Path | None, boot: str = "") -> None:
        self._path, self._boot = path, boot
        self._failure = Condition(log)

    def load(self) -> dict[str, _Gpu]:
        """Return the GPUs of the file; nothing if it is that of another boot or cannot be used."""
        try:
            return {uuid: _gpu(facts) for uuid, facts in self._read().items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else f"expected what gpugauge writes: {error}"
            log.warning("the file of Xid errors cannot be used", extra=fields(path=str(self._path), error=why))
            return {}

    def save(self, gpus: Mapping[str, _Gpu]) -> None:
        """Replace the file at once. A failure is logged once."""
        if self._path is None:
            return
        others: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            others = {uuid: facts for uuid, facts in self._read().items() if uuid not in gpus}
        mine = {uuid: _facts(gpu) for uuid, gpu in gpus.items() if gpu.xids or gpu.repaired}
        content = {"gpugauge": _FORMAT, "boot": self._boot, "gpus": others | mine}
        try:
            jsonfile.replace(self._path, content)
        except OSError as error:
            sentence = "the file of Xid errors cannot be written: after a restart they will not be known"
            self._failure.failing(sentence, path=str(self._path), error=error.strerror or str(error))
        else:
            self._failure.recovered("the file of Xid errors was written again", path=str(self._path))

    def _read(self) -> dict[str, Any]:
        """Return the facts by GPU of this boot. Raises OSError or ValueError."""
        if self._path is None:
            return {}
        match jsonfile.read(self._path):
            case {"gpugauge": 1, "boot": str(boot), "gpus": dict(gpus)}:
                return gpus if boot == self._boot else {}
        raise ValueError("wrong keys, or a format that this version does not know")


def _facts(gpu: _Gpu) -> dict[str, Any]:
    xids = {str(xid): error.at for xid, error in gpu.xids.items()}
    counters = {name: counter.value for name, counter in gpu.counters.items()}
    return {"xids": xids, "repaired": gpu.repaired, "counters": counters}


def _gpu(facts: Any) -> _Gpu:
    """Return a GPU. Raises ValueError."""
    match facts:
        case {
            "xids": dict(xids),
            "repaired": float() | int() as repaired,
            "counters": dict(counters),
        }:
            times = {int(xid): float(at) for xid, at in xids.items() if isinstance(at, (int, float))}
            opened = {xid: _Open(at) for xid, at in times.items() if xid in LASTING}
            if all(isinstance(value, (int, float)) for value in counters.values()):
                known = {name: _Counter(float(value)) for name, value in counters.items()}
                return _Gpu(opened, float(repaired), known)
    raise ValueError(f"wrong facts of a GPU: {str(facts)[:60]}")
