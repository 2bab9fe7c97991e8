"""Drawn kernel logs: what is open at the end is what the log says in its own order, whenever it was read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.drawn import seeds

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.collectors.device.faults import Faults
from gpugauge.collectors.device.gpufaults import FaultFile
from gpugauge.collectors.kmsg import KernelLog
from gpugauge.driver.api import Device, DeviceReading, DriverView
from gpugauge.driver.nvidia.kernellog import parse

UNIX = 1.7e9
CODES = (119, 109, 79, 62)  # their faults last, and end without a recovery action of the driver
GPUS = {f"GPU-{letter}": f"{number:02x}" for number, letter in enumerate("abc", 0x3B)}


@dataclass
class World:
    """A machine. `open` are the codes by GPU that are not repaired, as the order of the log says; `counted` are those
    since the start of the daemon.
    """

    chance: random.Random
    folder: Path
    now: float = 100.0
    set_clock: float = 0.0  # seconds by which the clock was set
    known: dict[str, str] = field(default_factory=dict)  # names by uuid, of GPUs that the driver knows
    open: dict[str, dict[int, float]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ahead = self.chance.choice([0.0, 0.0, -40.0, 60.0])  # of the kernel log's clock
        self.open = {uuid: {} for uuid in GPUS}
        self.counted = dict.fromkeys(GPUS, 0)
        self.log = self.folder / "kmsg"
        self.log.touch()

    def event(self) -> None:
        """Write what happens to the log: an error, the end of a fault, a start of the driver, another line."""
        self.now += self.chance.choice([0.001, 0.5, 3.0])
        kind = self.chance.choices(["xid", "over", "load", "other"], [6, 2, 1, 2])[0]
        uuid = self.chance.choice(list(GPUS))
        head = f"2,17,{round(1e6 * (self.now + self.ahead))},-;NVRM: "
        if kind == "xid":
            code = self.chance.choice(CODES)
            line = f"Xid (PCI:0000:{GPUS[uuid]}:00): {code}, pid=7, name=python3"
            self.open[uuid].setdefault(code, self.now)
            self.counted[uuid] += 1
        elif kind == "over":
            line = f"Xid (PCI:0000:{GPUS[uuid]}:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)"
            self.open[uuid] = {}
            self.counted[uuid] += 1
        elif kind == "load":
            line = "loading NVIDIA UNIX x86_64 Kernel Module  570.124.06"
            self.open = {uuid: {} for uuid in GPUS}
        else:
            line = "GPU at PCI:0000:3b:00: " + uuid
        with self.log.open("a") as file:
            file.write(f"{head}{line}\n" + "6,18,1,-;usb 1-1: new device\n" * self.chance.choice([0, 0, 300]))

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(name, True, "ok", DeviceReading(index=i, pci_bus_id=f"00000000:{GPUS[uuid]}:00.0"), {})
            for i, (uuid, name) in enumerate(self.known.items())
        )

    def start(self) -> EventsCollector:
        """Start the daemon; the next one has the file of the one before."""
        self.counted = dict.fromkeys(GPUS, 0)
        return EventsCollector(KernelLog(self.log, parse), Faults(FaultFile(self.folder / "xids.json", "boot")))

    def tick(self, collector: EventsCollector) -> dict[str, dict[tuple[str, ...], float]]:
        self.now += 0.1
        unix = UNIX + self.now + self.set_clock
        section = collector.collect(Tick(unix, self.now, DriverView(True, "ok", devices=self.devices())))
        return {f.metric.name: dict(f.samples) for f in section.families}  # type: ignore[arg-type]  # labels are texts

    def live(self, collector: EventsCollector) -> Iterator[None]:
        """Let things happen between ticks."""
        for _ in range(self.chance.randint(3, 25)):
            for _ in range(self.chance.choice([0, 1, 1, 4])):
                self.event()
            if self.chance.random() < 0.1:
                self.set_clock += self.chance.choice([-8 * 3600.0, -5.0, 3600.0])
            for uuid, bus in GPUS.items():
                if uuid not in self.known and self.chance.random() < 0.2:
                    self.known[uuid] = self.chance.choice([uuid, f"PCI-0000:{bus}:00.0-host"])
                elif self.known.get(uuid, "").startswith("PCI-") and self.chance.random() < 0.3:
                    self.known[uuid] = uuid
            self.tick(collector)
            yield


@seeds(range(60))
def test_what_is_open_is_what_the_log_says(seed: int, tmp_path: Path) -> None:
    world = World(random.Random(seed), tmp_path)
    for _ in range(world.chance.choice([0, 3])):
        world.event()  # before the first daemon
    for _ in range(world.chance.randint(1, 3)):
        collector = world.start()
        # The end of the log is where the first reading finds it.
        world.tick(collector)
        for _ in world.live(collector):
            pass
        if world.known:
            found = [world.tick(collector) for _ in range(12)][-1]
        for _ in range(world.chance.choice([0, 2])):
            world.event()  # while no daemon runs
    world.known = {uuid: uuid for uuid in GPUS}
    found = [world.tick(collector) for _ in range(12)][-1]

    open_now: dict[str, set[int]] = {uuid: set() for uuid in GPUS}
    unrepaired = found.get("gpu_xid_unrepaired_timestamp_seconds", {})
    for uuid, code, *_ in unrepaired:
        open_now[uuid].add(int(code))
    assert open_now == {uuid: set(codes) for uuid, codes in world.open.items()}
    counted = dict.fromkeys(GPUS, 0.0)
    for (uuid, *_), value in found["gpu_xid_errors_total"].items():
        counted[uuid] += value
    assert counted == world.counted
    for uuid, first in ((uuid, first) for uuid, codes in world.open.items() for first in codes.values()):
        times = [at for (u, *_), at in unrepaired.items() if u == uuid]
        nearest = min(abs(at - UNIX - world.set_clock - first) for at in times)
        assert nearest < 65.0, uuid
