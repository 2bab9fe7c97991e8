"""The kernel log's events of GPUs, in their order and each with its GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpugauge.collectors.base import Tick
from gpugauge.collectors.kmsg import KernelLog
from gpugauge.driver.api import Device, KernelXid
from gpugauge.driver.bus import pci_address

_MAX_WAITING = 1000


class Placed(NamedTuple):
    """An event of the GPU `uuid` at a Unix time; `uuid` is empty for a start of the driver, which is about all GPUs.
    `live` is false for what was in the log before the daemon started. `ended` is set if the driver was started again
    while the event waited for its GPU.
    """

    event: KernelXid
    uuid: str
    at: float
    live: bool
    ended: bool = False


class KernelXids:
    """Reads the log, from its end on and then what was before. Events of GPUs wait until these are known."""

    def __init__(self, log: KernelLog) -> None:
        self.log = log
        self.until = 0.0
        """The time until which no event waits, in the kernel's seconds."""
        self._past: list[KernelXid] = []
        self._waiting: list[Placed] = []
        self._known: tuple[str, ...] = ()
        self._last = 0.0  # the time of the last event

    def take(self, tick: Tick) -> list[Placed]:
        """Return the events whose GPU is known, oldest first: those that waited, and those since the last call. What
        was in the log before is returned at once, since its last record may end the faults of its first.
        """
        live = self.log.read(tick.monotonic)
        self._past += self.log.past()
        past: list[KernelXid] = []
        if not self.log.has_past:
            past, self._past = self._past, []
        known = tuple(device.uuid for device in tick.driver.devices)
        if not live and not past and (not self._waiting or known == self._known):
            return []
        self._known = known
        # Seconds since boot, since the clock may be set while an event waits.
        found = [Placed(event, "", event.seconds, live=False) for event in past]
        found += [*self._waiting, *(Placed(event, "", tick.monotonic, live=True) for event in live)]
        boot = tick.timestamp - tick.monotonic
        return [each._replace(at=boot + each.at) for each in self._placed(found, tick.driver.devices)]

    def _placed(self, found: Sequence[Placed], devices: tuple[Device, ...]) -> list[Placed]:
        named = [(d.reading.pci_bus_id, d.uuid) for d in devices if d.reading.pci_bus_id]
        addresses = {pci_address(bus_id).partition(".")[0]: uuid for bus_id, uuid in named}
        placed: list[Placed] = []
        waiting: list[Placed] = []
        for each in found:
            if each.event.xid is None:
                waiting = [earlier._replace(ended=True) for earlier in waiting]
            # A GPU at another address may be one that the settings exclude, or that a virtual machine has.
            uuid = addresses.get(each.event.address, "")
            (placed if uuid or each.event.xid is None else waiting).append(each._replace(uuid=uuid))
        self._waiting = waiting[-_MAX_WAITING:]
        times = [each.event.seconds for each in self._waiting]
        last = max([self._last, *(each.event.seconds for each in found)])
        self._last, self.until = last, min([last, *(math.nextafter(at, 0.0) for at in times)])
        return placed
