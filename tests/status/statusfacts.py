"""A snapshot of two GPUs with the rows of the catalogue."""

from qa.worlds.scraped import snapshot_of

from gpugauge import catalog
from gpugauge.collectors.process.allocation import DEVICES as ALLOCATION
from gpugauge.collectors.process.host import PROCESSES as HOST
from gpugauge.collectors.process.process import DEVICES, PROCESSES, USES
from gpugauge.metric import Family, Metric
from gpugauge.snapshot import Health, Section, Snapshot
from gpugauge.workload.identity import Workload

ROWS: dict[str, Metric] = {
    row.name: row for row in (*catalog.metrics(), *ALLOCATION, *HOST, *DEVICES, *PROCESSES, *USES)
}
POD = Workload("pod", "ml", "trainer-0", "main", "uid", "1000", "train.py")


def family(name: str, *samples: tuple[dict[str, str], float]) -> Family:
    """Return a family. Missing labels are empty; a label that the row does not have is an error."""
    row = ROWS[name]
    for labels, _ in samples:
        assert labels.keys() <= set(row.labels), name
    return Family(row, tuple((tuple(labels.get(label, "") for label in row.labels), v) for labels, v in samples))


def workload(who: Workload) -> dict[str, str]:
    return {f"workload_{key}": getattr(who, key) for key in Workload._fields}


def snapshot(command: str = "train.py", *, up: int = 1) -> Snapshot:
    """Return a snapshot: GPU 0 with the process of a pod, GPU 1 allocated to another pod and idle, a process with torch
    that uses no GPU.
    """
    two = ({"uuid": "GPU-b"}, {"uuid": "GPU-a"})
    who = Workload("pod", "ml", "trainer-0", "main", "uid", "1000", command)
    families = (
        family("gpugauge_build_info", ({"version": "9.9", "simulated": "true"}, 1)),
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", (two[0], 1), (two[1], up)),
        family(
            "gpu_info",
            ({"uuid": "GPU-b", "index": "1", "name": "NVIDIA H100 80GB HBM3"}, 1),
            ({"uuid": "GPU-a", "index": "0", "name": "NVIDIA H100 80GB HBM3"}, 1),
        ),
        family("gpu_utilization_ratio", (two[0], 0.0), (two[1], 0.93)),
        family("gpu_memory_used_bytes", (two[0], 1 << 30), (two[1], 41 << 30)),
        family("gpu_memory_total_bytes", (two[0], 80 << 30), (two[1], 80 << 30)),
        family("gpu_power_watts", (two[0], 71.4), (two[1], 612.2)),
        family("gpu_power_limit_watts", (two[0], 700), (two[1], 700)),
        family("gpu_temperature_celsius", ({"uuid": "GPU-a", "sensor": "gpu"}, 64)),
        family(
            "gpu_allocation_state",
            ({"uuid": "GPU-b", "state": "allocated"}, 1),
            ({"uuid": "GPU-b", "state": "shared"}, 0),
        ),
        family("gpu_allocation_info", ({"uuid": "GPU-b", **workload(Workload("pod", "web", "idle-7"))}, 1)),
        family("gpu_process_memory_used_bytes", ({"process": "aa", "uuid": "GPU-a"}, 40 << 30)),
        family(
            "gpu_process_busy_seconds_total",
            ({"process": "aa", "uuid": "GPU-a"}, 5),
            ({"process": "gone", "uuid": "GPU-a"}, 5),
        ),
        family(
            "gpu_process_info",
            ({"process": "aa", "pid": "4001", "kind": "compute", **workload(who)}, 1),
            ({"process": "gone"}, 1),
        ),
        family("gpu_process_start_timestamp_seconds", ({"process": "aa"}, 1.7e9 - 7300)),
        family("gpu_process_hidden", (two[0], 0), (two[1], 3)),
        family(
            "gpu_process_host_info",
            ({"process": "aa", "pid": "4001", "torch_build": "cuda"}, 1),
            (
                {
                    "process": "cc",
                    "pid": "77",
                    "torch_build": "cpu",
                    "workload_user": "ann",
                    "workload_command": "fit.py",
                },
                1,
            ),
        ),
    )
    health = {"host": Health(False, 0.1, 0, 3, "no"), "device": Health(True, 0.1, 1.7e9, 0)}
    return snapshot_of(1.7e9, 100.0, (Section("all", families),), health)
