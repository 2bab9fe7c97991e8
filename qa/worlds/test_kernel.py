"""Drawn kernel logs: what is open at the end is what the log says in its own order, whenever it was read, and whenever
the driver reports the same error. Of NVLink errors only the log has the severity.
"""

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
from gpugauge.driver.api import Device, DeviceReading, DriverView, Reply
from gpugauge.driver.nvidia.bus import parse

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
    collector: EventsCollector | None = None  # of the daemon that runs
    replies: list[Reply] = field(default_factory=list)  # of its driver, for the next tick
    unread: int = 0  # lines of the log

    def __post_init__(self) -> None:
        self.ahead = self.chance.choice([0.0, 0.0, -40.0, 60.0])  # of the kernel log's clock
        self.open = {uuid: {} for uuid in GPUS}
        self.counted = dict.fromkeys(GPUS, 0)
        self.log = self.folder / "kmsg"
        self.log.touch()

    def event(self) -> None:
        """Write what happens to the log: an error, the end of a fault, a start of the driver, another line."""
        self.now += self.chance.choice([0.001, 0.5, 3.0])
        kind = self.chance.choices(["xid", "nvlink", "over", "load", "other"], [6, 3, 2, 1, 2])[0]
        uuid = self.chance.choice(list(GPUS))
        head = f"2,17,{round(1e6 * (self.now + self.ahead))},-;NVRM: "
        if kind == "xid":
            code = self.chance.choice(CODES)
            line = f"Xid (PCI:0000:{GPUS[uuid]}:00): {code}, pid=7, name=python3"
            self.open[uuid].setdefault(code, self.now)
            self.counted[uuid] += 1
        elif kind == "nvlink":
            code, fatal = self.chance.randrange(144, 151), self.chance.random() < 0.4
            self.counted[uuid] += 1
            self.driver_reports(uuid, code)
            head = f"2,17,{round(1e6 * (self.now + self.ahead))},-;NVRM: "
            unit = (
                self.chance.choice(("RLW_REMAP Nonfatal", "SAW_MVB  Nonfatal")) if not fatal else "NETIR_LINK  Fatal  "
            )
            line = f"Xid (PCI:0000:{GPUS[uuid]}:00): {code}, {unit} XC0 i0 Link 04 (0x00000004 0x80000000)"
            if fatal:
                self.open[uuid].setdefault(code, self.now)
        elif kind == "over":
            line = f"Xid (PCI:0000:{GPUS[uuid]}:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)"
            self.open[uuid] = {}
            self.counted[uuid] += 1
        elif kind == "load":
            line = "loading NVIDIA UNIX x86_64 Kernel Module  570.124.06"
            self.open = {uuid: {} for uuid in GPUS}
        else:
            line = "GPU at PCI:0000:3b:00: " + uuid
        more = self.chance.choice([0, 0, 300])
        self.unread += 1 + more
        with self.log.open("a") as file:
            file.write(f"{head}{line}\n" + "6,18,1,-;usb 1-1: new device\n" * more)

    def driver_reports(self, uuid: str, code: int) -> None:
        """Let the driver report the error of a GPU that it knows, too: before its record, or at the same tick. Not
        where the record may be read too late, because many are before it.
        """
        if self.collector and self.known.get(uuid) == uuid and self.unread < 900 and self.chance.random() < 0.7:
            self.replies.append(Reply(1, "read", 0, events=[{"type": "xid", "xid": code}], uuid=uuid))
            if self.chance.random() < 0.5:
                self.tick(self.collector)

    def devices(self) -> tuple[Device, ...]:
        readings = (DeviceReading(index=i, pci_bus_id=f"00000000:{GPUS[u]}:00.0") for i, u in enumerate(self.known))
        named = zip(self.known.values(), readings, strict=True)
        return tuple(Device(name, self.chance.random() < 0.9, "ok", reading, {}) for name, reading in named)

    def start(self) -> EventsCollector:
        """Start the daemon; the next one has the file of the one before."""
        self.counted = dict.fromkeys(GPUS, 0)
        faults = Faults(FaultFile(self.folder / "xids.json", "boot"))
        self.collector = EventsCollector(KernelLog(self.log, parse), faults)
        return self.collector

    def tick(self, collector: EventsCollector) -> dict[str, dict[tuple[str, ...], float]]:
        self.now += 0.1
        unix = UNIX + self.now + self.set_clock
        replies, self.replies, self.unread = tuple(self.replies), [], max(0, self.unread - 1000)
        section = collector.collect(Tick(unix, self.now, DriverView(True, "ok", devices=self.devices()), replies))
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
        world.collector = None
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


def test_an_nvlink_error_that_the_log_does_not_have_is_a_fault(tmp_path: Path) -> None:
    """At once where no log can be read, else once its record is not awaited any more."""
    for readable in (True, False):
        world = World(random.Random(1), tmp_path, known={"GPU-a": "GPU-a"})
        collector = world.start() if readable else EventsCollector(None)
        world.tick(collector)
        world.replies = [Reply(1, "read", 0, events=[{"type": "xid", "xid": 145}], uuid="GPU-a")]
        seen = "gpu_xid_unrepaired_timestamp_seconds" in world.tick(collector)
        world.now += 11.0
        found = world.tick(collector)["gpu_xid_unrepaired_timestamp_seconds"]
        assert (seen, [labels[1] for labels in found]) == (not readable, ["145"])
        assert abs(found["GPU-a", "145", "workflow", "NVLink: RLW error"] - UNIX - world.now + 11.1) < 0.2
