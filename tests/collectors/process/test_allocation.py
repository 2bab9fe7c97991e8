from collections.abc import Mapping
from pathlib import Path

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.allocation import AllocationCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, MigReading
from gpugauge.workload.identity import Workload
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

TRAINER, SERVER = Workload("pod", "ml", "trainer-0", "main"), Workload("pod", "ml", "server-1", "main")


class FixedWorkloads(Workloads):
    """Attribution with fixed allocations."""

    def __init__(self, given: Mapping[str, tuple[Workload, ...]], sources: Mapping[str, bool]) -> None:
        super().__init__(Procfs(str(Path("/nonexistent"))))
        self.given, self.up, self.all_known = given, sources, True

    def allocations(self) -> Mapping[str, tuple[Workload, ...]]:
        return self.given

    def sources(self) -> Mapping[str, bool]:
        return self.up

    def lists_all(self) -> bool:
        return self.up.get("kubelet", False) and self.all_known

    def counters(self) -> Mapping[str, int]:
        return {"kubelet_failures": 2}


def tick(*readings: DeviceReading) -> Tick:
    return Tick(1, 1, DriverView(True, "ok", devices=tuple(Device(r.uuid, True, "ok", r, {}) for r in readings)))


def device(index: int, **more: object) -> DeviceReading:
    return DeviceReading(uuid=f"GPU-{index}", index=index, minor_number=index, **more)  # type: ignore[arg-type]  # one dict for several


def exported(collector: AllocationCollector, *readings: DeviceReading) -> dict[str, dict[tuple[str, ...], object]]:
    return {f.metric.name: dict(f.samples) for f in collector.collect(tick(*readings)).families}


def states(found: dict[str, dict[tuple[str, ...], object]]) -> dict[str, str]:
    return {uuid: state for (uuid, state), value in found.get("gpu_allocation_state", {}).items() if value == 1}


def test_states() -> None:
    given = {"GPU-0": (TRAINER,), "nvidia1": (TRAINER, SERVER), "GPU-2": (Workload("slurm", job_id="77"),)}

    found = exported(
        AllocationCollector(FixedWorkloads(given, {"kubelet": True})), device(0), device(1), device(2), device(3)
    )

    assert states(found) == {"GPU-0": "allocated", "GPU-1": "shared", "GPU-2": "allocated", "GPU-3": "unallocated"}
    assert {labels[0] for labels in found["gpu_allocation_info"]} == {"GPU-0", "GPU-1", "GPU-2"}
    assert len(found["gpu_allocation_info"]) == 4


def test_two_containers_of_a_pod_are_one_allocation() -> None:
    sidecar = Workload("pod", "ml", "trainer-0", "sidecar")

    found = exported(AllocationCollector(FixedWorkloads({"GPU-0": (TRAINER, sidecar)}, {"kubelet": True})), device(0))

    assert states(found) == {"GPU-0": "allocated"}


def test_state_is_absent_without_a_scheduler() -> None:
    found = exported(AllocationCollector(FixedWorkloads({}, {"procfs": True, "kubelet": False})), device(0))

    assert "gpu_allocation_state" not in found
    assert found["gpugauge_attribution_source_up"] == {("procfs",): 1, ("kubelet",): 0}
    assert found["gpugauge_attribution_problems_total"] == {("kubelet_failures",): 2}


def test_no_device_is_free_while_an_unknown_name_is_allocated() -> None:
    """The device may be the one with that name."""
    workloads = FixedWorkloads({"GPU-0": (TRAINER,)}, {"kubelet": True})
    collector = AllocationCollector(workloads)
    found = []
    for workloads.all_known in (True, False, True):
        found.append(states(exported(collector, device(0), device(1))))

    assert found == [
        {"GPU-0": "allocated", "GPU-1": "unallocated"},
        {"GPU-0": "allocated"},
        {"GPU-0": "allocated", "GPU-1": "unallocated"},
    ]


def test_mig_devices_are_allocated_instead_of_their_gpu() -> None:
    parts = (MigReading("MIG-a", gpu_instance_id=7), MigReading("MIG-b", gpu_instance_id=8))
    given = {"nvidia0/gi7": (TRAINER,)}

    found = exported(
        AllocationCollector(FixedWorkloads(given, {"kubelet": True})), device(0, mig_mode=True, mig_instances=parts)
    )

    assert states(found) == {"MIG-a": "allocated", "MIG-b": "unallocated"}


def test_same_section_until_something_changes() -> None:
    workloads = FixedWorkloads({"GPU-0": (TRAINER,)}, {"kubelet": True})
    collector = AllocationCollector(workloads)

    first, same = collector.collect(tick(device(0))), collector.collect(tick(device(0)))
    workloads.given = {}

    assert same is first
    assert collector.collect(tick(device(0))) is not first
