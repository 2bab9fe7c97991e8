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
_SAVE_SECONDS = 3600.0  # the counter in the file may be this old


@dataclass(slots=True)
class _Open:
    """An error that is not repaired: Unix time, and the reading of the recovery action that began after it."""

    at: float
    reading: int | None = None


@dataclass(slots=True)
class _Gpu:
    """The errors of one GPU by Xid code, the Unix time of its last repair, and the counter that a reset restarts."""

    xids: dict[int, _Open] = field(default_factory=dict)
    repaired: float = 0.0
    counter: float | None = None
    lower: float | None = None  # a first reading below the counter: one alone may be a wrong value
    lower_at: float = 0.0
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
                if self._restarted(gpu, device, timestamp):
                    self._repaired(device, "its counters restarted", gpu.lower_at)
                self._check_action(gpu, device, timestamp)
        plain = self._plain()
        if plain != self._saved or (timestamp >= self._next_save and any(gpu.xids for gpu in self._gpus.values())):
            self._file.save(self._gpus)
            self._saved, self._next_save = plain, timestamp + _SAVE_SECONDS

    def _restarted(self, gpu: _Gpu, device: Device, timestamp: float) -> bool:
        """Return whether the second of two readings in a row is below an earlier one."""
        generation = device.generations.get("normal", 0)
        value = _since_load(device.reading)
        if value is None or generation == gpu.generation:
            return False
        gpu.generation = generation
        if gpu.counter is None or value >= gpu.counter:
            gpu.counter, gpu.lower = value, None
            return False
        if gpu.lower is None or value < gpu.lower:
            gpu.lower, gpu.lower_at = value, timestamp
            return False
        gpu.counter, gpu.lower = value, None
        return True

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


def _since_load(reading: DeviceReading) -> float | None:
    """Return a counter that only a reset or a load of the driver restarts; None if the GPU has none."""
    if reading.energy_millijoules is not None:
        return float(reading.energy_millijoules)
    seconds = reading.clocks_event_nanoseconds
    return float(sum(seconds.values())) if seconds else None


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
    return {"xids": xids, "repaired": gpu.repaired, "counter": gpu.counter}


def _gpu(facts: Any) -> _Gpu:
    """Return a GPU. Raises ValueError."""
    match facts:
        case {
            "xids": dict(xids),
            "repaired": float() | int() as repaired,
            "counter": float() | int() | None as counter,
        }:
            times = {int(xid): float(at) for xid, at in xids.items() if isinstance(at, (int, float))}
            return _Gpu({xid: _Open(at) for xid, at in times.items() if xid in LASTING}, float(repaired), counter)
    raise ValueError(f"wrong facts of a GPU: {str(facts)[:60]}")
