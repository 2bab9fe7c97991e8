"""The faults of the GPUs that the daemon has found, as they are exported and as the views show them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpugauge.driver.api import Device
from gpugauge.driver.bus import pci_address
from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.faults.table import Ailment, GpuHealth
from gpugauge.snapshot import Section, Snapshot

_POINT_SECONDS = 30.0  # between two points of a track
_LEAST_SECONDS = 30.0  # over which a rate is known


@dataclass(frozen=True, slots=True, eq=False)
class Judged(Section):
    """The section about the faults of GPUs, with the faults by uuid, the gravest first."""

    faults: Mapping[str, tuple[Ailment, ...]]


def faults_of(snapshot: Snapshot) -> Mapping[str, tuple[Ailment, ...]]:
    """Return the faults of each GPU that the daemon knows by uuid; {} if they are not judged."""
    return next((section.faults for section in snapshot.sections if isinstance(section, Judged)), {})


def health_of(device: Device, devices: Iterable[Device]) -> GpuHealth:
    """Return the figures of the reading of a GPU among `devices`. An action without a name is as none."""
    reading = device.reading
    lanes = reading.pcie_width, reading.pcie_width_max
    return GpuHealth(
        action if (action := reading.recovery_action) in RECOVERY_ACTIONS else "none",
        bool(reading.remapped_rows_failure),
        bool(reading.remapped_rows_pending),
        sum((reading.retired_pages or {}).values()),
        bool(reading.retired_pages_pending),
        (reading.ecc_errors or {}).get("uncorrected_volatile") or 0,
        reading.nvlink_errors or {},
        temperature=reading.temperature_celsius,
        slowdown_temperature=reading.temperature_slowdown_celsius,
        lanes=None if None in lanes else lanes,  # type: ignore[arg-type]  # mypy does not follow `in`
        vendor=device.vendor,
        number=str(reading.index),
        links=_links(device, devices) if reading.nvlink_link_errors else {},
    )


def _links(device: Device, devices: Iterable[Device]) -> dict[str, tuple[int, str]]:
    """Return the NVLinks with errors: how many, and what is at the other end, "" if that is not known."""
    errors, ends = device.reading.nvlink_link_errors or {}, device.reading.nvlink_ends or {}
    names = {pci_address(d.reading.pci_bus_id or ""): f"GPU {d.reading.index}" for d in devices if d.reading.index >= 0}
    names |= {"switch": "an NVSwitch", "npu": "an NPU", "": ""}
    return {link: (sum(kinds.values()), names.get(end := ends.get(link, ""), end)) for link, kinds in errors.items()}


class Track:
    """What counters of one GPU have risen, over a time and in bounded memory: a point each 30 s."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._risen: dict[str, float] = {}
        self._points: deque[tuple[float, dict[str, float]]] = deque()

    def add(self, now: float, counters: Mapping[str, float], seconds: float) -> None:
        """Add the present counters, and forget what is older. One that fell was reset, and has risen by its value."""
        for name, value in counters.items():
            before = self._last.get(name, value)
            self._risen[name] = self._risen.get(name, 0.0) + value - (before if value >= before else 0)
        self._last |= counters
        if not self._points or now - self._points[-1][0] >= _POINT_SECONDS:
            self._points.append((now, dict(self._risen)))
        while now - self._points[0][0] > seconds + _POINT_SECONDS:
            self._points.popleft()

    def rates(self, names: Collection[str], now: float, seconds: float) -> dict[str, float]:
        """Return the rise per second of counters over the last seconds, or since they are known if that is 30 s."""
        found: dict[str, float] = {}
        for age, then in ((now - at, risen) for at, risen in self._points):
            if age < _LEAST_SECONDS or len(found) == len(names):
                break
            known = then.keys() - found.keys() if age <= seconds else ()
            found |= {name: (self._risen[name] - then[name]) / age for name in names if name in known}
        return found
