"""Which job or pod each device is given to, also while it is idle, and where all attribution comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpugauge.collectors.base import Tick
from gpugauge.driver.api import Device
from gpugauge.metric import NONE, LabelValues, Metric, Table, families
from gpugauge.snapshot import Section
from gpugauge.workload.identity import LABELS, Workload
from gpugauge.workload.workloads import Workloads

STATES = ("allocated", "shared", "unallocated")
# Sources that tell of every device that is given to somebody: what they do not name is free.
_COMPLETE = ("kubelet", "slurm")

_device = Table("uuid")
_exporter = Table()


@dataclass(frozen=True, slots=True)
class _Holders:
    """Who a device is given to."""

    workloads: tuple[Workload, ...]
    known: bool  # whether nobody means free

    def info(self) -> dict[tuple[str, ...], float] | None:
        return {w.labels(): 1 for w in self.workloads} or None

    def states(self) -> dict[str, int] | None:
        if not self.workloads and not self.known:
            return None
        owners = {(w.kind, w.namespace, w.pod, w.job_id) for w in self.workloads}
        current = "unallocated" if not owners else "allocated" if len(owners) == 1 else "shared"
        return {state: int(state == current) for state in STATES}


DEVICES: tuple[Metric, ...] = (
    _device.gauge(
        "gpu_allocation_info",
        "The job or pod that the GPU or MIG device is given to, whether it uses it or not; always 1. A shared one has "
        "several.",
        NONE,
        _Holders.info,
        *LABELS,
        source="kubelet pod-resources, Slurm job mapping files",
    ),
    _device.gauge(
        "gpu_allocation_state",
        "1 for the state of the GPU or MIG device: given to one job or pod, to several, or to none. Absent where no "
        "scheduler tells.",
        NONE,
        _Holders.states,
        "state",
        source="kubelet pod-resources, Slurm job mapping files",
    ),
)

SOURCES: tuple[Metric, ...] = (
    _exporter.gauge(
        "gpugauge_attribution_source_up",
        "1 while the source of workload labels works, 0 while its labels are missing; the log says why. Absent where "
        "it does not apply.",
        NONE,
        lambda w: {name: int(up) for name, up in w.sources().items()},
        "source",
    ),
    _exporter.counter(
        "gpugauge_attribution_problems_total",
        "What attribution had to cut, to clean or to do without, by kind.",
        NONE,
        lambda w: dict(w.counters()),
        "kind",
    ),
)


class AllocationCollector:
    """Rows by uuid of GPUs and MIG devices."""

    name = "allocation"
    metrics = DEVICES + SOURCES

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads
        self._seen: object = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return who has which device; the same section until that changes."""
        allocations = self._workloads.allocations()
        sources, counters = self._workloads.sources(), self._workloads.counters()
        devices = tick.driver.devices
        inventory = [(d.uuid, d.up, d.generations.get("static", 0), d.generations.get("mig", 0)) for d in devices]
        seen = (dict(allocations), dict(sources), dict(counters), inventory)
        if seen != self._seen:
            known = any(sources.get(name) for name in _COMPLETE)
            subjects = [*self._subjects(devices, allocations, known)]
            told = families(DEVICES, subjects) + families(SOURCES, [((), self._workloads)])
            self._section, self._seen = Section(self.name, told), seen
        return self._section

    @staticmethod
    def _subjects(
        devices: Sequence[Device], allocations: Mapping[str, tuple[Workload, ...]], known: bool
    ) -> Iterator[tuple[LabelValues, _Holders]]:
        for device in devices:
            reading = device.reading
            names = [device.uuid, f"nvidia{reading.minor_number}", f"index:{reading.index}"]
            instances = reading.mig_instances or ()
            holders = _holders(names, allocations)
            # A GPU that is divided is not given to anybody, its parts are.
            yield (device.uuid,), _Holders(holders, known and not instances and not reading.mig_mode)
            for mig in instances:
                part = mig.gpu_instance_id
                parts = [mig.uuid, f"nvidia{reading.minor_number}/gi{part}", f"index:{reading.index}.{part}"]
                yield (mig.uuid,), _Holders(_holders(parts, allocations), known)


def _holders(names: Sequence[str], allocations: Mapping[str, tuple[Workload, ...]]) -> tuple[Workload, ...]:
    """Return everybody who is given a device under any of its names, each once."""
    return tuple(dict.fromkeys(w for name in names for w in allocations.get(name, ())))
