"""Status of a node: the answer, the problems, GPUs, the processes that use them, states and causes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from gpugauge.driver.advice import FORGET, REMEMBERED, WITHOUT_GPU, down_advice, known_advice
from gpugauge.driver.advice import words as driver_words
from gpugauge.driver.api import Device, MigReading, down_reason
from gpugauge.faults.judged import faults_of
from gpugauge.faults.repair import ANY_SITE, SEE, Need, Site, needs
from gpugauge.faults.table import FAULTS, Ailment, slowdowns, xid_fault
from gpugauge.metric import scaled
from gpugauge.node.node import NO_READING, Node, Xids
from gpugauge.snapshot import Snapshot
from gpugauge.status.answer import answer
from gpugauge.status.history import History
from gpugauge.status.identity import workload
from gpugauge.status.model import DriverStatus, FaultStatus, GpuStatus, MigStatus, ProcessStatus, Status, Use, XidStatus
from gpugauge.status.problems import level, problems, with_state
from gpugauge.status.processes import processes_of
from gpugauge.status.use import totals

_LOAD_WINDOW_SECONDS = 300.0
_XID_SECONDS = 86_400.0  # for which an Xid error is shown
_MIG_USED_BYTES = 128 << 20  # an empty MIG device has some tens of MiB in use, a CUDA context some hundreds
_NO_XIDS = Xids({}, {})


def gpus(
    node: Node,
    history: History,
    processes: Sequence[ProcessStatus],
    faults: Mapping[str, Sequence[Ailment]],
    site: Site,
) -> list[GpuStatus]:
    """Return the GPUs by index, without their states; `faults` are by uuid, `site` is the place of the daemon."""
    on_mig: dict[str, set[str]] = {}
    for label, uuid in node.on_mig:
        on_mig.setdefault(uuid, set()).add(label)
    result: list[GpuStatus] = []
    for device in node.shown():
        uuid, known = device.uuid, device.reading
        reading = known if device.up else NO_READING
        index = None if known.index < 0 else known.index
        devices = [
            _mig(mig, node, bool(on_mig.get(mig.uuid)), reading.processes is not None)
            for mig in reading.mig_instances or ()
        ]
        devices.sort(key=lambda mig: (int(mig.gpu_instance or -1), int(mig.compute_instance or -1)))
        users = []
        for process in processes:
            if use := (process.devices or {}).get(uuid):
                own = tuple(mig.uuid for mig in devices if process.process in on_mig.get(mig.uuid, ()))
                users.append(_using(process, use, mig=own))
        last = history.last_use(uuid)
        seen = last.timestamp if last and not device.up else None
        found = tuple(
            FaultStatus(
                *(f.grave, f.text, site.fill(f.advice, uuid) or None, f.runbook, FAULTS[f.runbook].action, f.kind),
                *((seen, False) if f.kind == "gpu_down" else (f.since, f.earlier)),
            )
            for f in faults.get(uuid, ())
        )
        state, holders = _allocation(node, uuid)
        reason = None if device.up else down_reason(device.reason)
        gpu = GpuStatus(
            index=index,
            uuid=uuid,
            name=known.name or None,
            pci_bus_id=known.pci_bus_id or None,
            up=device.up,
            down_reason=reason,
            advice=None if device.up else site.fill(down_advice(reason, device.vendor) or "", uuid) or None,
            load=node.utilization.get(uuid),
            memory_used_bytes=reading.memory_used_bytes,
            memory_total_bytes=reading.memory_total_bytes,
            power_watts=scaled(reading.power_milliwatts, 1e-3),
            power_limit_watts=scaled(reading.power_limit_milliwatts, 1e-3),
            load_5m=history.load(uuid, _LOAD_WINDOW_SECONDS),
            pcie_width=reading.pcie_width,
            pcie_width_max=reading.pcie_width_max,
            load_10m=tuple((round(ago, 1), share and round(share, 3)) for ago, share in history.loads(uuid)),
            temperature_celsius=reading.temperature_celsius,
            faults=found,
            health=tuple(replace(fault, kind=None) for fault in found if fault.kind == "gpu_health"),
            slowed_by=tuple(slowdowns(reading.clocks_event_reasons or ())),
            xids=tuple(_xids(node.xids.get(uuid, _NO_XIDS), device, node.timestamp, site)),
            unread={failure.reading: failure.reason for failure in device.failures},
            mig=tuple(devices),
            allocation=state,
            allocated_to=holders,
            processes=tuple(users),
            processes_hidden=node.hidden.get(uuid, 0),
        )
        result.append(gpu if device.up else _last_use(gpu, history, processes))
    return sorted(result, key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.uuid))


def remembered(gpu: GpuStatus, site: Site) -> GpuStatus:
    """Return a GPU of which only the state file knows, on a machine without a GPU and without a driver."""
    return replace(gpu, down_reason=REMEMBERED, advice=site.fill(FORGET, gpu.uuid))


def needed(node: Node, faults: Mapping[str, Sequence[Ailment]]) -> Iterator[Need]:
    """Yield what repairs the GPUs of a node; `faults` are by uuid."""
    for device in node.shown():
        unrepaired = node.xids.get(device.uuid, _NO_XIDS).unrepaired
        xids = (xid_fault(xid, device.vendor, device.reading.index) for xid in unrepaired)
        for fault in filter(None, (*faults.get(device.uuid, ()), *xids)):
            yield from needs(device, [fault.advice], FAULTS[fault.runbook])


def _allocation(node: Node, uuid: str) -> tuple[str | None, tuple[Mapping[str, str], ...]]:
    found = node.assignments.get(uuid)
    return (found.state, tuple(map(workload, found.workloads))) if found else (None, ())


def _xids(found: Xids, device: Device, now: float, site: Site) -> Iterator[XidStatus]:
    """Yield the Xid errors of a GPU, the newest first."""
    errors = {**found.last, **found.unrepaired}
    for xid, at in sorted(errors.items(), key=lambda error: (error[1], str(error[0])), reverse=True):
        if xid in found.unrepaired or now - at < _XID_SECONDS:
            code, kind, name = device.vendor.error_labels(xid)
            fault = xid_fault(xid, device.vendor, device.reading.index)
            yield XidStatus(
                xid=xid,
                text=f"Xid {code}" + (f": {name}" if name else ""),
                kind=kind,
                last=at,
                advice=site.fill(fault.advice) or SEE if fault and fault.advice and xid in found.unrepaired else None,
                runbook=fault.runbook if fault else None,
            )


def _mig(mig: MigReading, node: Node, used: bool, listed: bool) -> MigStatus:
    """Return a MIG device; `used` is whether a process holds memory on it, `listed` whether that is known."""
    memory, load = mig.memory_used_bytes, scaled(mig.sm_active_percent, 0.01)
    busy = used or bool(load) or (memory is not None and memory >= _MIG_USED_BYTES)
    known = listed or load is not None or memory is not None
    state, holders = _allocation(node, mig.uuid)
    words = "in use" if busy else "free" if known else ""
    ids = (None if number is None else str(number) for number in (mig.gpu_instance_id, mig.compute_instance_id))
    gpu_instance, compute_instance = ids
    return MigStatus(
        uuid=mig.uuid,
        profile=mig.profile or None,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        load=load,
        memory_used_bytes=memory,
        memory_total_bytes=mig.memory_total_bytes,
        allocation=state,
        allocated_to=holders,
        state_words=words if state in {None, "unallocated"} else state or "",
    )


def _using(process: ProcessStatus, use: Use | None, **more: Any) -> ProcessStatus:
    memory, load = (use.memory_used_bytes, use.load_5m) if use else (None, None)
    return replace(process, devices=None, memory_used_bytes=memory, load_5m=load, **more)


def _last_use(gpu: GpuStatus, history: History, processes: Sequence[ProcessStatus]) -> GpuStatus:
    """Return a GPU that is down with what is known of its last answer; processes that still run are as they are now."""
    use = history.last_use(gpu.uuid)
    if use is None:
        return gpu
    present = {p.process: p for p in processes if p.ended is None or p.devices}
    # What it did at that moment is not kept, but for its verdict.
    found = processes_of(use.node, History(), use.timestamp, use.processes)
    then = {process.process: replace(process, phase=None, loader={}) for process in found}
    last = [
        _using(present.get(label, then[label]), (then[label].devices or {}).get(gpu.uuid), alive=label in present)
        for label in use.processes
        if label in then
    ]
    return replace(gpu, last_seen=use.timestamp, last_processes=tuple(last))


_HOOK_TROUBLE_SECONDS = 300.0  # a replaced receiver is shown for this long
_MAX_ERROR_CHARACTERS = 200  # the log has the whole error


def build(
    snapshot: Snapshot, history: History, may_have_gpu: Callable[[], bool] = lambda: True, site: Site = ANY_SITE
) -> Status:
    """Return the status. `may_have_gpu` is called if the driver is missing; `site` is the place of the daemon."""
    version, simulated = snapshot.node.build or (None, False)
    processes = processes_of(snapshot.node, history, snapshot.timestamp, site=site)
    without_gpu = [process for process in processes if not process.devices]
    driver = _driver(snapshot.node, history, may_have_gpu)
    faults = faults_of(snapshot)
    of_gpus = gpus(snapshot.node, history, processes, faults, site)
    facts = Status(
        answer="",
        host=socket.gethostname(),
        timestamp=snapshot.timestamp,
        version=version,
        simulated=simulated,
        driver=driver,
        failing_collectors={
            name: " ".join(health.error.split())[:_MAX_ERROR_CHARACTERS]
            for name, health in sorted(snapshot.health.items())
            if not health.success
        },
        hook=_hook(snapshot.node),
        gpus=tuple(gpu if driver.needed else remembered(gpu, site) for gpu in of_gpus),
        # Trainings with the hook come first.
        without_gpu=tuple(sorted((p for p in without_gpu if p.ended is None), key=lambda p: not p.hook)),
        ended=tuple(sorted(filter(attrgetter("ended"), without_gpu), key=attrgetter("ended"), reverse=True)),
    )
    found_problems = problems(facts, site, list(needed(snapshot.node, faults)))
    return replace(
        facts,
        answer=answer(facts, found_problems),
        level=level(found_problems, facts),
        problems=tuple(found_problems),
        totals=totals(facts.gpus),
        gpus=tuple(with_state(gpu, found_problems) for gpu in facts.gpus),
    )


def _driver(node: Node, history: History, may_have_gpu: Callable[[], bool]) -> DriverStatus:
    up, reason, released_until = node.driver.up, node.driver.reason, node.driver.released_until
    # GPUs that answered this daemon were there, those from the state file may have been removed since.
    gone = not up and reason in WITHOUT_GPU and not any(history.last_use(device.uuid) for device in node.shown())
    needed = not gone or may_have_gpu()
    advised = not up and needed and released_until is None
    return DriverStatus(
        up=up,
        reason=reason,
        needed=needed,
        state_words="up" if up else driver_words(reason, needed=needed),
        released_until=released_until,
        advice=known_advice(reason, node.driver.vendor) if advised else None,
    )


def _hook(node: Node) -> str | None:
    """Return a sentence about recent trouble with the hook's socket, None without."""
    replaced_at, bans = (node.hook.replaced_at, node.hook.banned) if node.hook else (None, 0)
    if replaced_at is not None and node.timestamp - replaced_at < _HOOK_TROUBLE_SECONDS:
        return "the process that receives from trainings hung or ended and was replaced: see the log"
    return f"connections of {bans} users are refused for some minutes: see the log" if bans else None
