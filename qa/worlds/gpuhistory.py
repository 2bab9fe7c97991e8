"""A machine whose GPUs are lost, hang, return and are swapped as a history says; the truth about what is exported.

The library is the simulated one, but the enumeration, the faults and the bus follow the history only. The worker runs
in this process and in the time of the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.simulator.build import scenario

from gpugauge.driver.api import Group, Reply
from gpugauge.driver.bus import BusDevice
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.nvidia.caller import code_name
from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.driver.worker import Service
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.answers import pointed
from gpugauge.simulator.nvml.library import Library

# Codes of a call that concern one GPU; the others mean the driver as a whole, or a function that is not supported.
CODES = (2, 6, 8, 10, 11, 14, 15, 16, 17, 19, 20, 23, 27, 29, 30, 999, 555)
_OPENING = "nvmlDeviceGetHandleByIndex_v2"
_UUID = "nvmlDeviceGetUUID"
ANY = "any reason"


class Hang(BaseException):
    """The call never returns."""


class Crash(BaseException):
    """The call ends the process."""


@dataclass
class Slot:
    """A place on the bus with a GPU. `fault` is a code, Hang or Crash of the call `where`."""

    address: str
    uuid: str
    on_bus: bool = True
    driver: str | None = "nvidia"
    visible: bool = True
    enumerated: bool = True
    fault: int | type[BaseException] | None = None
    where: str = _OPENING

    @property
    def counted(self) -> bool:
        return self.on_bus and self.enumerated and self.driver == "nvidia" and self.visible

    @property
    def works(self) -> bool:
        return self.counted and self.fault is None

    @property
    def failure(self) -> str:
        """The reason that a reading shows."""
        if self.fault is Hang:
            return "hangs"
        if self.fault is Crash:
            return "crashes_worker"
        assert isinstance(self.fault, int)
        # A GPU that does not tell its uuid, but answers otherwise.
        soft = self.where == _UUID and self.fault not in {15, 16}
        named = "unknown" if self.fault == 555 else code_name(self.fault)
        return "no_uuid" if soft else named


@dataclass
class Machine:
    """The slots in the order of the bus; `order` is that of the library."""

    slots: list[Slot]
    order: Callable[[list[Slot]], list[Slot]] = lambda slots: slots
    foreign_events: bool = False
    now: float = 1000.0
    events: list[tuple[str, float, int]] = field(default_factory=list)  # uuid, second, Xid

    def bus(self) -> tuple[BusDevice, ...]:
        return tuple(
            BusDevice(slot.address, visible=slot.visible)
            if slot.driver == "nvidia"
            else BusDevice(slot.address, f"bound to {slot.driver or 'no driver'}")
            for slot in self.slots
            if slot.on_bus
        )

    def enumerated(self) -> list[Slot]:
        return self.order([slot for slot in self.slots if slot.counted])

    def library(self) -> Any:
        slots = self.enumerated()
        gpus = f"{{model: h100, count: {len(slots)}}}" if slots else "[]"
        foreign = str(self.foreign_events).lower()
        simulation = scenario(f"driver: {{foreign_events: {foreign}}}\ngpus: {gpus}").simulation()
        world = World(simulation, lambda: self.now)
        world._start = 0.0
        for device, slot in zip(world.devices, slots, strict=True):
            device.uuid, device.bus_id = slot.uuid, _unnamed(slot.address).removeprefix("PCI-")
            device.events = _Events(self, slot.uuid)  # type: ignore[assignment]  # an iterable
        return _FaultyLibrary(Library(world), slots)

    def worker(self) -> Worker:
        return _InlineWorker(self)


class _Events:
    """The events of a GPU up to now."""

    def __init__(self, machine: Machine, uuid: str) -> None:
        self._machine, self._uuid = machine, uuid

    def __iter__(self) -> Any:
        return iter([(at, "xid", xid) for uuid, at, xid in self._machine.events if uuid == self._uuid])


class _FaultyLibrary:
    def __init__(self, library: Library, slots: list[Slot]) -> None:
        self._library, self._slots = library, slots

    def __getattr__(self, function: str) -> Any:
        call = getattr(self._library, function)
        if not function.startswith("nvmlDevice") or function == "nvmlDeviceGetCount_v2":
            return call

        def faulty(first: Any, *others: Any) -> int:
            number = first.value if function == _OPENING else pointed(first) - 1
            slot = self._slots[number]
            if slot.fault is not None and slot.where in {function, "*"}:
                if isinstance(slot.fault, int):
                    return slot.fault
                raise slot.fault
            return int(call(first, *others))

        return faulty


class _InlineWorker(Worker):
    """A worker in this process."""

    pid = 1

    def __init__(self, machine: Machine) -> None:
        self._machine, self._dead = machine, False
        self._requests: list[dict[str, Any]] = []
        self._service: Service | None = None

    def send(self, op: str, **arguments: Any) -> int:
        self._requests.append({"id": len(self._requests) + 1, "op": op, **arguments})
        return len(self._requests)

    def read(self, devices: Iterable[tuple[int, list[Group]]]) -> list[int]:
        return [self.send("read", index=index, groups=groups) for index, groups in devices]

    def wait_for_reply(self, seconds: float) -> bool:
        return True

    def receive(self, number: int, deadline: float) -> Reply:
        if self._service is None:
            use_library(self._machine.library())
            self._service = Service(Nvml(lambda: self._machine.now), lambda: self._machine.now)
        try:
            return self._service.answer(self._requests[number - 1])
        except Hang:
            raise WorkerHangsError("no reply") from None
        except Crash:
            raise WorkerGoneError("SIGSEGV") from None

    def interrupt(self) -> None:
        pass

    def end(self, *, graceful: bool = True, grace_seconds: float = 0.3) -> bool:
        self._dead = True
        return True

    def reaped(self) -> bool:
        return self._dead

    def was_killed(self) -> bool:
        return False

    def resident_bytes(self) -> int | None:
        return 1000

    def ending(self) -> str:
        return "was ended"


def drawn_machine(draw: random.Random) -> Machine:
    count = draw.randint(1, 5)
    addresses = sorted(f"{draw.choice(['0000', '0001', '10000'])}:{16 + i:02x}:00.0" for i in range(count))
    slots = [Slot(address, f"GPU-{i}-first") for i, address in enumerate(addresses)]
    machine = Machine(slots, foreign_events=draw.random() < 0.3)
    for slot in slots:
        if draw.random() < 0.35:
            change(draw, slot)
    return machine


def change(draw: random.Random, slot: Slot) -> None:
    """Draw what happens to a GPU."""
    what = draw.choice(["repair", "repair", "code", "code", "hang", "crash", "unlisted", "removed", "vfio", "replaced"])
    slot.on_bus = slot.enumerated = True
    slot.driver, slot.fault = "nvidia", None
    slot.where = draw.choice([_OPENING, _OPENING, _UUID, "*"])
    if what == "code":
        slot.fault = draw.choice(CODES)
    elif what == "hang":
        slot.fault = Hang
    elif what == "crash":
        slot.fault = Crash
    elif what == "unlisted":
        slot.enumerated = False
    elif what == "removed":
        slot.on_bus = False
    elif what == "vfio":
        slot.driver = draw.choice(["vfio-pci", None])
    elif what == "replaced":
        slot.uuid += "-next"


def _unnamed(address: str) -> str:
    """Return the identity of a GPU that was never read: eight digits of the domain, in capitals."""
    domain, _, rest = address.partition(":")
    return f"PCI-{domain.rjust(8, '0')}:{rest}".upper()


@dataclass
class Truth:
    """What is exported, computed from the history of the slots alone."""

    read: dict[str, str] = field(default_factory=dict)  # address by uuid, of GPUs that any daemon has read
    exact: dict[str, str] = field(default_factory=dict)  # the last exact reason by identity, since the GPU was up
    shown: dict[str, str] = field(default_factory=dict)  # what the running daemon shows: "ok" or the reason

    def restart(self) -> None:
        """A new daemon knows uuids from the state file, and nothing else."""
        self.exact.clear()
        self.shown.clear()

    def step(self, machine: Machine) -> None:
        """Compute what is shown once the slots have been as they are for some minutes."""
        here: dict[str, str] = {}
        occupied = {slot.address: slot.uuid for slot in machine.slots if slot.works}
        self.read = {u: a for u, a in self.read.items() if occupied.get(a, u) == u}
        self.read |= {slot.uuid: slot.address for slot in machine.slots if slot.works}
        at = {address: uuid for uuid, address in self.read.items()}
        for slot in machine.slots:
            name = at.get(slot.address) or _unnamed(slot.address)
            if slot.works:
                here[slot.uuid] = "ok"
            elif slot.counted:
                here[name] = slot.failure
            elif not slot.on_bus:
                if slot.address in at or name in self.shown:
                    here[name] = self.exact.get(name, "removed")
            elif slot.driver == "nvidia":
                here[name] = self.exact.get(name, "not_enumerated")
        for run in _uncertain(machine.slots):
            for address in run:
                name = at.get(address) or _unnamed(address)
                here[name] = ANY
        self.exact = {name: r for name, r in here.items() if r not in {"ok", "removed", "not_enumerated"}}
        self.shown = here

    def agrees(self, exported: dict[str, str]) -> bool:
        """Return whether what is exported is true."""
        if self.shown and "ok" not in self.shown.values():
            # The driver is down if no GPU answers; each then has the reason for which it was not read before.
            return self.shown.keys() <= exported.keys() and "ok" not in exported.values()
        return exported.keys() == self.shown.keys() and all(
            exported[name] == reason or (reason == ANY and exported[name] != "ok")
            for name, reason in self.shown.items()
        )


def _uncertain(slots: list[Slot]) -> list[list[str]]:
    """Return the addresses of GPUs between two that work, of which the driver lists some and not the others: which of
    them has the reason of a failure cannot be known from outside.
    """
    found, run = [], list[Slot]()
    for slot in [*(s for s in slots if s.on_bus and s.driver == "nvidia"), None]:
        if slot is not None and not slot.works:
            run.append(slot)
            continue
        if len({s.counted for s in run}) == 2:
            found.append([s.address for s in run])
        run = []
    return found
