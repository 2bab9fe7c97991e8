"""Assignment of devices to jobs and pods, used or idle, and the state of the sources of workload labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.driver.api import Device
from gpugauge.metric import Metric, Table, families
from gpugauge.node.node import Assignment
from gpugauge.snapshot import Section
from gpugauge.workload.identity import LABELS, Workload, device_names
from gpugauge.workload.workloads import Workloads

STATES = ("allocated", "shared", "unallocated")

_device = Table[Assignment]("uuid", source="kubelet pod-resources, Slurm job mapping files")
_exporter = Table[Workloads]()


DEVICES: tuple[Metric, ...] = (
    INFO := _device.gauge(
        "gpu_allocation_info",
        "The job or pod to which the GPU or MIG device is allocated, whether it is used or not; always 1. A shared "
        "device has several series.",
        lambda a: {tuple(w): 1 for w in a.workloads} or None,
        *LABELS,
    ),
    _device.gauge(
        "gpu_allocation_state",
        "1 for the current state of the GPU or MIG device: allocated (to one job or pod), shared (allocated to "
        "several), or unallocated. Absent if no scheduler reports it.",
        lambda a: {state: int(state == a.state) for state in STATES} if a.state else None,
        "state",
    ),
)

SOURCES: tuple[Metric, ...] = (
    SOURCE_UP := _exporter.gauge(
        "gpugauge_attribution_source_up",
        "1 while the source of workload labels works, 0 while its labels are missing; the reason is in the log. Absent "
        "if the source does not apply.",
        lambda w: {name: int(up) for name, up in w.sources().items()},
        "source",
    ),
    _exporter.counter(
        "gpugauge_attribution_problems_total",
        "Values that attribution truncated, cleaned, ignored or failed to read, and jobs that changed because a name "
        "in them came late (jobs_changed), by kind.",
        lambda w: dict(w.counters()),
        "kind",
    ),
)


class AllocationCollector(RegisteredCollector):
    """Rows by uuid of GPUs and MIG devices."""

    name = "allocation"
    metrics = DEVICES + SOURCES

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads
        self._seen: object = None
        self._section = Section(self.name, ())
        self._assignments: dict[str, Assignment] = {}

    @classmethod
    def create(cls, sources: Sources) -> AllocationCollector:
        """Return a collector of the node's allocations."""
        return cls(sources.workloads)

    def collect(self, tick: Tick) -> Section:
        """Return the assignment of each device; the same section until it changes."""
        devices = tick.driver.devices
        self._workloads.indexes.note(
            tick.timestamp, _indexes(devices), whole=all(d.reading.index >= 0 for d in devices)
        )
        allocations = self._workloads.allocations()
        sources, counters, complete = self._workloads.sources(), self._workloads.counters(), self._workloads.lists_all()
        inventory = [(d.uuid, d.up, d.generations.get("static", 0), d.generations.get("mig", 0)) for d in devices]
        seen = (dict(allocations), dict(sources), dict(counters), complete, inventory)
        if seen != self._seen:
            subjects = [*self._subjects(devices, allocations, complete)]
            found = families(DEVICES, subjects) + families(SOURCES, [((), self._workloads)])
            self._section, self._seen = Section(self.name, found), seen
            self._assignments = {uuid: assignment for (uuid,), assignment in subjects}
        tick.node.assignments = self._assignments
        return self._section

    @staticmethod
    def _subjects(
        devices: Sequence[Device], allocations: Mapping[str, tuple[Workload, ...]], complete: bool
    ) -> Iterator[tuple[tuple[str], Assignment]]:
        for device in devices:
            reading = device.reading
            names = device_names(device.uuid, reading.minor_number, bus_id=reading.pci_bus_id)
            instances = reading.mig_instances or ()
            workloads = _workloads(names, allocations)
            # Of a GPU in MIG mode, the MIG devices are assigned.
            yield (device.uuid,), Assignment(workloads, complete and not instances and not reading.mig_mode)
            for mig in instances:
                instance = mig.gpu_instance_id
                ids = (reading.minor_number, instance) if instance is not None else ()
                yield (mig.uuid,), Assignment(_workloads(device_names(mig.uuid, *ids), allocations), complete)


def _indexes(devices: Sequence[Device]) -> dict[str, str]:
    """Return the uuids of GPUs and MIG devices by the names of indexes in job files."""
    known = [(device, f"index:{device.reading.index}") for device in devices if device.reading.index >= 0]
    of_mig = {f"{name}.{mig.gpu_instance_id}": mig.uuid for d, name in known for mig in d.reading.mig_instances or ()}
    return {name: device.uuid for device, name in known} | of_mig


def _workloads(names: Sequence[str], allocations: Mapping[str, tuple[Workload, ...]]) -> tuple[Workload, ...]:
    """Return the workloads that a device is assigned to under any of its names, each once."""
    return tuple(dict.fromkeys(w for name in names for w in allocations.get(name, ())))
