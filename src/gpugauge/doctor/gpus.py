"""One reading of the driver and its GPUs by a worker process, so that a hanging call cannot block the doctor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpugauge.driver.api import Device, DeviceReading, DriverFacts, Group, Reply, code_name
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.inventory import Inventory

_GROUPS: tuple[Group, ...] = ("static", "fast", "normal", "slow", "processes", "mig")
# Without persistence mode, opening takes 1-3 s per GPU.
_OPEN_SECONDS, _READ_SECONDS = 30.0, 10.0


@dataclass(frozen=True, slots=True)
class Driver:
    """`reason` is "ok" or the reason why the driver is down. `devices` are by index; failed ones have up=False."""

    reason: str
    facts: DriverFacts | None = None
    devices: tuple[Device, ...] = ()

    @property
    def up(self) -> tuple[Device, ...]:
        """The GPUs that are up."""
        return tuple(device for device in self.devices if device.up)


def ask(spawn: Callable[[], Worker], simulate: Mapping[str, Any] | None = None) -> Driver:
    """Open the driver, or a simulated one, and read every GPU once."""
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
            if hangs:  # the worker is blocked in the call and cannot read the other GPUs
                devices += [_down(later, "not read") for later in range(index + 1, facts.device_count)]
                break
        return Driver("ok", facts, tuple(devices))
    except WorkerHangsError:
        hangs = True
        return Driver("timeout")
    except WorkerGoneError:
        return Driver("worker_failed")
    finally:
        worker.end(graceful=not hangs)


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
        return _down(index, code_name(reply.failed) if reply.failed is not None else "reports no uuid")
    return devices[0]


def _down(index: int, reason: str) -> Device:
    return Device("", up=False, reason=reason, reading=DeviceReading(index=index), generations={})
