"""What the driver says, asked once through a worker of the daemon's kind: a call that hangs cannot hang the doctor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpugauge.driver.api import Device, DeviceReading, DriverFacts, Group, Reply, code_name
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.inventory import Inventory

_GROUPS: tuple[Group, ...] = ("static", "fast", "normal", "slow", "processes", "mig")
# Without persistence mode opening takes 1-3 s a GPU.
_OPEN_SECONDS, _READ_SECONDS = 30.0, 10.0


@dataclass(frozen=True, slots=True)
class Driver:
    """`reason` is "ok" or the name of what keeps the driver down; `devices` by index, the failed ones with up=False."""

    reason: str
    facts: DriverFacts | None = None
    devices: tuple[Device, ...] = ()

    @property
    def up(self) -> tuple[Device, ...]:
        """The GPUs that answer."""
        return tuple(device for device in self.devices if device.up)


def ask(spawn: Callable[[], Worker], simulate: Mapping[str, Any] | None = None) -> Driver:
    """Open the driver (or a simulated one) and read every GPU once."""
    try:
        worker = spawn()
    except OSError:
        return Driver("worker_failed")
    hangs = False
    try:
        reply = worker.ask("open", _OPEN_SECONDS, **({} if simulate is None else {"simulate": simulate}))
        if reply.failed is not None:
            return Driver(code_name(reply.failed))
        facts = DriverFacts(**reply.values["driver"])
        devices = []
        for index in range(facts.device_count):
            devices.append(_read(index, worker))
            hangs = devices[-1].reason == "hangs"
            if hangs:  # the worker is stuck in it: the GPUs after it cannot be asked
                devices += [_down(later, "not asked") for later in range(index + 1, facts.device_count)]
                break
        return Driver("ok", facts, tuple(devices))
    except WorkerHangsError:
        hangs = True
        return Driver("timeout")
    except WorkerGoneError:
        return Driver("worker_failed")
    finally:
        worker.end(polite=not hangs)


def _read(index: int, worker: Worker) -> Device:
    try:
        reply = worker.ask("read", _READ_SECONDS, index=index, groups=list(_GROUPS))
    except WorkerHangsError:
        return _down(index, "hangs")
    return _device(index, reply)


def _device(index: int, reply: Reply) -> Device:
    now = time.monotonic()
    inventory = Inventory({})
    inventory.apply(reply, now)
    devices = inventory.devices(now)
    if not devices:
        return _down(index, code_name(reply.failed) if reply.failed is not None else "does not tell its uuid")
    return devices[0]


def _down(index: int, reason: str) -> Device:
    return Device("", up=False, reason=reason, reading=DeviceReading(index=index), generations={})
