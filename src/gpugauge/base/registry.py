"""The registered collectors. Catalogue, daemon and settings follow from this table, which imports none of them."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A registered collector: name, `module:Class` below `gpugauge.collectors`, description of its setting."""

    name: str
    implementation: str
    description: str


# In the order in which the collectors run and in which their metrics are listed. Later ones
# read the parts of the node that earlier ones set, and `verdict` those of all others.
COLLECTORS: tuple[Entry, ...] = (
    Entry("device", "device.device:DeviceCollector", "GPUs: identity, memory, power, temperature, fans, modes."),
    Entry("utilization", "device.utilization:UtilizationCollector", "Utilization of the engines of each GPU."),
    Entry("profiling", "device.profiling:ProfilingCollector", "Performance counters of GPUs that support GPM."),
    Entry("clocks", "device.clocks:ClocksCollector", "Clocks, and the reasons for which they are lowered."),
    Entry("health", "device.health:HealthCollector", "ECC errors, remapped rows, retired pages, recovery action."),
    Entry("events", "device.events:EventsCollector", "Xid errors and changes of the MIG layout."),
    Entry("links", "device.links:LinksCollector", "PCIe and NVLink."),
    Entry("faults", "device.problems:FaultsCollector", "Faults of GPUs, as alerts, dashboards and page show them."),
    Entry("mig", "device.mig:MigCollector", "MIG devices."),
    Entry("process", "process.process:ProcessCollector", "Processes on each GPU."),
    Entry("host", "process.host:HostCollector", "CPU, I/O and cgroup figures of processes on GPUs or with torch."),
    Entry("allocation", "process.allocation:AllocationCollector", "The pod or job that each GPU is assigned to."),
    Entry("training", "training.training:TrainingCollector", "Reports of training processes through the hook."),
    Entry("memory", "training.memory:MemoryCollector", "Memory of trainings: growth, room, imbalance of ranks."),
    Entry("driver", "exporter.driver:DriverCollector", "Duration and errors of the driver calls."),
    Entry(
        "verdict", "training.verdict:VerdictCollector", "State of each training, and the causes of its lost GPU time."
    ),
)
