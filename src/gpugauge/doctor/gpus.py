"""One reading of the driver and its GPUs by a worker process, so that a hanging call cannot block the doctor.

After a GPU that hangs or ends the worker, a new worker reads the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpugauge.driver.advice import down_advice
from gpugauge.driver.api import Device, DeviceReading, DriverFacts, Group
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.driver.inventory import Inventory
from gpugauge.faults.judged import health_of
from gpugauge.faults.repair import ANY_SITE
from gpugauge.faults.table import FAULTS, SLOWDOWNS, Ailment, Fault, ailments
from gpugauge.status.model import FaultStatus, GpuStatus, ProcessStatus

# The first request has the identity of the GPU, which is then known if the second one fails.
_REQUESTS: tuple[tuple[Group, ...], ...] = (("static",), ("fast", "normal", "slow", "processes", "mig"))
# Without persistence mode, opening takes 1-3 s per GPU.
_OPEN_SECONDS, _READ_SECONDS = 30.0, 10.0
HANGS, CRASHES = "hangs", "ends the process that reads it"


@dataclass(frozen=True, slots=True)
class Driver:
    """`reason` is "ok" or the reason why the driver is down. `devices` are by index; failed ones have up=False.
    `errors` has the return codes of failed values, by index of the GPU and field.
    """

    reason: str
    facts: DriverFacts | None = None
    devices: tuple[Device, ...] = ()
    errors: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def up(self) -> tuple[Device, ...]:
        """The GPUs that are up."""
        return tuple(device for device in self.devices if device.up)

    @property
    def hangs(self) -> bool:
        """Whether it, or a call about a GPU, did not return."""
        return self.reason == "timeout" or any(device.reason == HANGS for device in self.devices)


def name_of(device: Device) -> str:
    """Return the index of a GPU and, if known, its uuid."""
    return f"GPU {device.reading.index}" + (f" ({device.uuid})" if device.uuid else "")


def computing(device: Device) -> list[int]:
    """Return the pids of the compute processes that the driver lists for a GPU."""
    return sorted({process.pid for process in device.reading.processes or () if process.kind != "graphics"})


def _faults(device: Device, devices: Iterable[Device] = ()) -> list[Ailment]:
    """Return the faults that a GPU has if it worked all the time in the state of its reading."""
    reading, action = device.reading, device.reading.recovery_action
    slowed = dict.fromkeys((reason for reason in reading.clocks_event_reasons or () if reason in SLOWDOWNS), 1.0)
    health = health_of(device, devices)._replace(slowed=slowed, load=1.0, was_narrow=True)
    if action is not None and action not in RECOVERY_ACTIONS:
        health = health._replace(recovery_action=action)
    return ailments(health)


def advice_on(device: Device) -> dict[str, Fault]:
    """Return what to do about each fault of a GPU, or about one that cannot be read, as `Site.fill` takes it."""
    down = down_advice("crashes_worker" if device.reason == CRASHES else device.reason, device.vendor) or ""
    return {f.advice: FAULTS[f.runbook] for f in _faults(device)} if device.up else {down: FAULTS["GpuLost"]}


def status_of(device: Device, devices: Iterable[Device] = ()) -> GpuStatus:
    """Return a GPU among `devices` that answers, with its faults and the pids on it."""
    reading = device.reading
    faults = tuple(
        FaultStatus(f.grave, f.text, ANY_SITE.fill(f.advice, device.uuid) or None, f.runbook, kind=f.kind)
        for f in _faults(device, devices)
    )
    return GpuStatus(
        index=reading.index,
        uuid=device.uuid,
        pcie_width=reading.pcie_width,
        pcie_width_max=reading.pcie_width_max,
        faults=faults,
        processes=tuple(ProcessStatus(process=str(pid), pid=pid) for pid in computing(device)),
    )


class _OpenError(Exception):
    """The driver cannot be opened; the message is the reason."""


def ask(spawn: Callable[[], Worker], simulate: Mapping[str, Any] | None = None) -> Driver:
    """Open the driver, or a simulated one, and read every GPU once."""
    try:
        first, facts = _opened(spawn, simulate)
    except _OpenError as failed:
        return Driver(str(failed))
    worker: Worker | None = first
    devices: list[Device] = []
    errors: dict[int, dict[str, str]] = {}
    for index in range(facts.device_count):
        try:
            worker = worker or _opened_again(spawn, simulate, facts.device_count)
        except _OpenError as failed:
            devices += [_down(later, f"not read: {failed}") for later in range(index, facts.device_count)]
            break
        device, errors[index] = _read(index, worker)
        devices.append(device)
        if device.reason in {HANGS, CRASHES}:
            worker.end(graceful=False)
            worker = None
    if worker is not None:
        worker.end()
    return Driver("ok", facts, tuple(devices), errors)


def _opened_again(spawn: Callable[[], Worker], simulate: Mapping[str, Any] | None, count: int) -> Worker:
    """Return a new worker after one that was lost. Raises _OpenError."""
    try:
        worker, facts = _opened(spawn, simulate)
    except _OpenError as failed:
        raise _OpenError(f"the driver cannot be opened again ({failed})") from None
    if facts.device_count != count:  # the indexes may be those of other GPUs
        worker.end()
        raise _OpenError(f"the driver found {count} GPUs, and then {facts.device_count}")
    return worker


def _opened(spawn: Callable[[], Worker], simulate: Mapping[str, Any] | None) -> tuple[Worker, DriverFacts]:
    """Return a new worker and the facts of the driver that it has opened. Raises _OpenError."""
    try:
        worker = spawn()
    except OSError:
        raise _OpenError("worker_failed") from None
    try:
        reply = worker.ask("open", _OPEN_SECONDS, **({} if simulate is None else {"simulate": simulate}))
    except (WorkerHangsError, WorkerGoneError) as error:
        hangs = isinstance(error, WorkerHangsError)
        worker.end(graceful=not hangs)
        raise _OpenError("timeout" if hangs else "worker_failed") from None
    if reply.failed is not None:
        worker.end()
        raise _OpenError(reply.failed)
    return worker, DriverFacts(**reply.values["driver"])


def _read(index: int, worker: Worker) -> tuple[Device, dict[str, str]]:
    inventory, errors = Inventory({}), dict[str, str]()
    for groups in _REQUESTS:
        try:
            reply = worker.ask("read", _READ_SECONDS, index=index, groups=list(groups))
        except (WorkerHangsError, WorkerGoneError) as error:
            return _down(index, HANGS if isinstance(error, WorkerHangsError) else CRASHES, inventory), {}
        if reply.failed is not None:
            return _down(index, reply.failed, inventory), {}
        inventory.apply(reply, time.monotonic())
        errors |= reply.errors
    devices = inventory.devices(time.monotonic())
    return (devices[0], errors) if devices else (_down(index, "reports no uuid"), {})


def _down(index: int, reason: str, inventory: Inventory | None = None) -> Device:
    """Return a GPU of which at most the identity was read."""
    known = inventory.devices(time.monotonic()) if inventory else ()
    uuid, reading = (known[0].uuid, known[0].reading) if known else ("", DeviceReading(index=index))
    return Device(uuid, up=False, reason=reason, reading=reading, generations={})
