"""The Xid errors of one GPU that are not repaired, its counters that a reset restarts, and the file of all GPUs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpugauge.base import jsonfile
from gpugauge.base.logline import Condition, fields
from gpugauge.driver.vendors.nvidia import LASTING

log = logging.getLogger("gpugauge.events")

_FORMAT = 1
_UNSTEADY = 0.9  # a counter may go back a little without a reset


@dataclass(slots=True)
class OpenError:
    """An error that is not repaired: Unix times of its last and its first report."""

    at: float
    first: float
    reading: int | None = None  # of the recovery action, which began after the last report


@dataclass(slots=True)
class Counter:
    """A counter that a reset restarts, and the Unix times of the last reading before and the first after it. One lower
    reading alone may be a wrong value. The driver's part leaves out such a reading, so the reset may be before a
    reading without the value.
    """

    value: float
    before: float = 0.0
    lower: float | None = None
    at: float = 0.0
    absent_at: float | None = None  # of the reading before this one, if the value was absent

    def restarted(self, value: float | None, timestamp: float) -> bool:
        """Return whether this reading and the one before it are lower than an earlier one."""
        absent_at, self.absent_at = self.absent_at, None
        if value is None:
            self.absent_at = timestamp
        elif value >= _UNSTEADY * self.value:
            self.value, self.lower, self.before = max(value, self.value), None, timestamp
        elif self.lower is None or value < self.lower:
            self.lower, self.at = value, timestamp if absent_at is None else absent_at
        else:
            return True
        return False


@dataclass(slots=True)
class GpuFaults:
    """The errors of one GPU by Xid code, the Unix time of its last repair, and the counters that a reset restarts."""

    xids: dict[int, OpenError] = field(default_factory=dict)
    repaired: float = 0.0
    counters: dict[str, Counter] = field(default_factory=dict)
    action: str | None = None
    generation: int | None = None

    def move(self, seconds: float) -> None:
        """Add seconds to all times."""
        self.repaired += seconds if self.repaired else 0.0
        for error in self.xids.values():
            error.at, error.first = error.at + seconds, error.first + seconds
        for counter in self.counters.values():
            counter.at, counter.before = counter.at + seconds, counter.before + seconds
            counter.absent_at = None if counter.absent_at is None else counter.absent_at + seconds

    def repair(self, at: float, codes: frozenset[int] = LASTING) -> None:
        """Close the errors until a Unix time."""
        self.xids = {xid: error for xid, error in self.xids.items() if xid not in codes or error.at > at}


class Marks(NamedTuple):
    """How far a daemon has processed the kernel log, in its seconds, and the Unix time of the boot by its clock."""

    log: float = 0.0
    booted: float | None = None


class FaultFile:
    """The file at `path`, None to store nothing. Another `boot` is a repair. GPUs of other daemons are kept."""

    def __init__(self, path: Path | None, boot: str = "") -> None:
        self._path, self._boot = path, boot
        self._failure = Condition(log)

    def load(self) -> tuple[dict[str, GpuFaults], Marks]:
        """Return the GPUs, and how far the last daemon was; nothing for another boot, or if it cannot be used."""
        try:
            content = self._content()
            return {uuid: _gpu(facts) for uuid, facts in self._gpus_of(content).items()}, self._marks(content)
        except FileNotFoundError:
            return {}, Marks()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else f"expected what gpugauge writes: {error}"
            log.warning("the file of Xid errors cannot be used", extra=fields(path=str(self._path), error=why))
            return {}, Marks()

    def _marks(self, content: Mapping[str, Any]) -> Marks:
        log_seconds, booted = (content.get(key) for key in ("log", "booted"))
        if content["boot"] != self._boot or not isinstance(log_seconds, (int, float)):
            return Marks()
        return Marks(float(log_seconds), float(booted) if isinstance(booted, (int, float)) else None)

    def save(self, gpus: Mapping[str, GpuFaults], marks: Marks) -> None:
        """Replace the file at once. A failure is logged once."""
        if self._path is None:
            return
        others: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            content = self._content()
            others = {uuid: facts for uuid, facts in self._gpus_of(content).items() if uuid not in gpus}
            marks = Marks(max(marks.log, self._marks(content).log), marks.booted)
        mine = {uuid: _facts(gpu) for uuid, gpu in gpus.items() if gpu.xids or gpu.repaired}
        head = {"gpugauge": _FORMAT, "boot": self._boot, "log": marks.log, "booted": marks.booted}
        try:
            jsonfile.replace(self._path, head | {"gpus": others | mine})
        except OSError as error:
            sentence = "the file of Xid errors cannot be written: after a restart they will not be known"
            self._failure.failing(sentence, path=str(self._path), error=error.strerror or str(error))
        else:
            self._failure.recovered("the file of Xid errors was written again", path=str(self._path))

    def _content(self) -> dict[str, Any]:
        if self._path is None:
            return {"boot": self._boot, "gpus": {}}
        match jsonfile.read(self._path):
            case {"gpugauge": 1, "boot": str(boot), "gpus": dict(gpus), **more}:
                return {"boot": boot, "gpus": gpus, "log": more.get("log"), "booted": more.get("booted")}
        raise ValueError("wrong keys, or a format that this version does not know")

    def _gpus_of(self, content: Mapping[str, Any]) -> dict[str, Any]:
        return dict(content["gpus"]) if content["boot"] == self._boot else {}


def _facts(gpu: GpuFaults) -> dict[str, Any]:
    xids = {str(xid): error.at for xid, error in gpu.xids.items()}
    first = {str(xid): error.first for xid, error in gpu.xids.items()}
    counters = {name: counter.value for name, counter in gpu.counters.items()}
    return {"xids": xids, "first": first, "repaired": gpu.repaired, "counters": counters}


def _gpu(facts: Any) -> GpuFaults:
    match facts:
        case {"xids": dict(xids), "repaired": float() | int() as repaired, "counters": dict(counters)}:
            times, first = _times(xids), _times(facts.get("first", {}))
            opened = {xid: OpenError(at, first.get(xid, at)) for xid, at in times.items() if xid in LASTING}
            if all(isinstance(value, (int, float)) for value in counters.values()):
                known = {name: Counter(float(value)) for name, value in counters.items()}
                return GpuFaults(opened, float(repaired), known)
    raise ValueError(f"wrong facts of a GPU: {str(facts)[:60]}")


def _times(found: Any) -> dict[int, float]:
    items = found.items() if isinstance(found, dict) else ()
    return {int(xid): float(at) for xid, at in items if isinstance(at, (int, float))}
