"""CPU of attribution by collector, on 8 GPUs with 64 processes each and 1,000 other processes.

The processes are files in the layout of /proc, and the time is virtual: the result is the CPU time of the collectors
and of the file system.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from tests.collectors.proctree import CUDA, write

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.collectors.process.allocation import AllocationCollector
from gpugauge.collectors.process.host import HostCollector
from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, ProcessReading, Reply
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.bench import figures
from qa.bench.report import report

DEVICES, EACH, OTHERS = 8, 64, 1000
TICKS, WARM_UP = 300, 60  # seconds
SAMPLES_SECONDS, LISTS_SECONDS = 2, 5  # between two readings, as in the daemon
# A training maps hundreds of libraries before those of torch.
_LIBRARIES = "".join(f"7f{i:04x}-7f{i + 1:04x} r-xp 00000000 08:01 {i}  /usr/lib/lib{i}.so\n" for i in range(400))


def pid(device: int, number: int) -> int:
    return 10_000 + device * EACH + number


def write_processes(root: Path) -> None:
    """Write the processes; each on a GPU is a training in its own pod."""
    (root / "uptime").write_text("100000.0 0\n")
    for device in range(DEVICES):
        for number in range(EACH):
            uid = f"3f1c0d1e_8a2b_4b5e_9c47_{device:06x}{number:06x}"
            scope = f"cri-containerd-{device:032x}{number:032x}.scope"
            cgroup = f"0::/kubepods.slice/kubepods-pod{uid}.slice/{scope}\n"
            command = ("python", f"train{pid(device, number)}.py")
            write(root, pid(device, number), maps=_LIBRARIES + CUDA, cgroup=cgroup, command=command, main=5, io=(1, 1))
    for number in range(OTHERS):
        write(root, 30_000 + number, maps=_LIBRARIES, command=("sleep", "1000"))


def tick(second: int) -> Tick:
    """Return a tick in which every process is listed and has used its GPU."""
    devices, replies = [], []
    for device in range(DEVICES):
        pids = [pid(device, number) for number in range(EACH)]
        listed = tuple(ProcessReading(p, "compute", 1 << 30) for p in pids)
        reading = DeviceReading(uuid=f"GPU-{device}", minor_number=device, index=device, processes=listed)
        devices.append(Device(f"GPU-{device}", True, "ok", reading, {"processes": second // LISTS_SECONDS}))
        rows = [[second * 1_000_000, p, 1, 0, 0, 0] for p in pids]
        if second % SAMPLES_SECONDS == 0:
            replies.append(Reply(1, "read", uuid=f"GPU-{device}", samples={"process": rows}, received=float(second)))
    return Tick(1.7e9 + second, second, DriverView(True, "ok", devices=tuple(devices)), tuple(replies))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_processes(Path(folder))
        procfs = Procfs(folder)
        workloads = Workloads(procfs)
        now = [0.0]
        collectors: list[RegisteredCollector] = [
            ProcessCollector(procfs, lambda _: 0.9 * now[0], workloads.registry),
            HostCollector(procfs, workloads),
            AllocationCollector(workloads),
        ]
        first: dict[str, float] = {}
        spent = dict.fromkeys((collector.name for collector in collectors), 0.0)
        for second in range(1, WARM_UP + TICKS + 1):
            now[0] = float(second)
            now_tick = tick(second)
            for collector in collectors:
                began = time.process_time()
                collector.collect(now_tick)
                took = time.process_time() - began
                first.setdefault(collector.name, took)
                if second > WARM_UP:
                    spent[collector.name] += took
    rows: list[dict[str, Any]] = [
        {"collector": name, "% of a core": 100 * seconds / TICKS, "first tick ms": 1000 * first[name]}
        for name, seconds in spent.items()
    ]
    total = {
        "collector": "all",
        "% of a core": 100 * sum(spent.values()) / TICKS,
        "first tick ms": 1000 * sum(first.values()),
    }
    title = f"Attribution: {DEVICES} GPUs with {EACH} processes each, {OTHERS} other processes"
    report(title, [*rows, total], "python -m qa.bench.attribution")


if __name__ == "__main__":
    figures.run("attribution", main)
