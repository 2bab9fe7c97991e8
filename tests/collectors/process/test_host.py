"""Processes with torch and on GPUs, from proc and cgroup trees and from real processes."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.host import PROCESSES, HostCollector, HostError
from gpugauge.driver.api import Device, DeviceReading, DriverView, ProcessReading
from gpugauge.hook.launch import environment
from gpugauge.workload.processfiles import cgroup, torch_build
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from tests.collectors.proctree import CPU, CUDA, ROCM, write

TICK = os.sysconf("SC_CLK_TCK")
Values = dict[str, dict[tuple[str, ...], float]]


def tick(now: float, *gpu_pids: int) -> Tick:
    listed = tuple(ProcessReading(pid, "compute", 1) for pid in gpu_pids)
    device = Device("GPU-a", True, "ok", DeviceReading(processes=listed), {})
    return Tick(now, now, DriverView(True, "ok", devices=(device,)))


def values(collector: HostCollector, now: float, *gpu_pids: int) -> Values:
    """Return the samples by metric and labels, with the pid in the place of the `process` label."""
    found: Values = {f.metric.name: dict(f.samples) for f in collector.collect(tick(now, *gpu_pids)).families}  # type: ignore[arg-type]  # all here are of one kind
    pids = {process: pid for (process, pid, *_) in found.get("gpu_process_host_info", {})}
    return {
        name: {(pids.get(labels[0], labels[0]), *labels[1:]) if labels else (): value for labels, value in of.items()}
        for name, of in found.items()
    }


def builds(found: Values) -> dict[str, str]:
    return {labels[0]: labels[3] for labels in found.get("gpu_process_host_info", {})}


def test_build_by_the_libraries_that_are_mapped(tmp_path: Path) -> None:
    write(tmp_path, 10, maps=CUDA)
    write(tmp_path, 11, maps=CPU)
    write(tmp_path, 12, maps=ROCM)
    write(tmp_path, 13, maps="7f00 /home/me/mylibtorch.so\n7f01 /data/libtorch_notes.so\n")

    assert builds(values(HostCollector(Procfs(str(tmp_path))), 0)) == {"10": "cuda", "11": "cpu", "12": "rocm"}


def test_process_on_a_gpu_is_exported_without_torch(tmp_path: Path) -> None:
    write(tmp_path, 10)
    write(tmp_path, 11)

    assert builds(values(HostCollector(Procfs(str(tmp_path))), 0, 11, 999)) == {"11": ""}


def test_a_user_with_many_processes_displaces_no_other_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpugauge.collectors.process.host_scan._MAX_PROCESSES", 4)
    for pid in range(10, 20):
        write(tmp_path, pid, maps=CPU, uid=1000)
    for pid in (21, 22):
        write(tmp_path, pid, maps=CPU, uid=pid)
    write(tmp_path, 30, uid=1002)

    found = values(HostCollector(Procfs(str(tmp_path))), 0, 30)

    assert builds(found).keys() > {"21", "22", "30"}
    assert len(builds(found)) == 4
    assert found["gpugauge_host_processes_left_out"] == {(): 9}


def test_workers_are_children_and_ranks_are_processes(tmp_path: Path) -> None:
    write(tmp_path, 10, maps=CPU, command=("torchrun", "train.py"))
    write(tmp_path, 11, parent=10, maps=CPU, cpu=7 * TICK, reaped=2 * TICK)
    write(tmp_path, 12, parent=11, maps=CPU, cpu=3 * TICK)
    write(tmp_path, 13, parent=11, maps=CPU, cpu=TICK, command=("python", "-c", "from multiprocessing.spawn import x"))
    write(tmp_path, 14, parent=13, cpu=TICK, command=("ffmpeg",))

    found = values(HostCollector(Procfs(str(tmp_path))), 0)

    assert builds(found).keys() == {"10", "11"}
    assert found["gpu_process_cpu_seconds_total"][("11", "process")] == 7
    assert found["gpu_process_cpu_seconds_total"][("11", "children")] == 2 + 3 + 1 + 1
    assert found["gpu_process_cpu_seconds_total"][("10", "children")] == 0


def test_time_of_children_does_not_fall_when_one_ends_unwaited(tmp_path: Path) -> None:
    write(tmp_path, 10, maps=CPU)
    child = write(tmp_path, 11, parent=10, cpu=5 * TICK)
    collector = HostCollector(Procfs(str(tmp_path)))
    values(collector, 0)
    shutil.rmtree(child)

    assert values(collector, 10)["gpu_process_cpu_seconds_total"][("10", "children")] == 5


def test_facts_of_a_process(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    devices = ("/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/tmp/x")
    environ = {"CUDA_VISIBLE_DEVICES": "0,3", "AWS_SECRET": "x"}
    figures = {"cpu": 900, "main": 200, "faults": 12, "io": (4096, 512)}
    write(proc, 10, maps=CUDA, state="D", cpus="ff,0000000f", environ=environ, devices=devices, **figures)  # type: ignore[arg-type]  # one dict for several
    (groups / "job").mkdir(parents=True)
    (groups / "job/cpu.stat").write_text("usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n")
    (groups / "job/cpu.max").write_text("250000 100000\n")
    for resource in ("cpu", "io", "memory"):
        text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
        (groups / f"job/{resource}.pressure").write_text(text)
    procfs = Procfs(str(proc))
    collector = HostCollector(procfs, Workloads(procfs, cgroup_root=groups))

    values(collector, 0)
    found = values(collector, 10)

    (info,) = found["gpu_process_host_info"]
    assert (info[3], info[4]) == ("cuda", "0,3")
    assert found["gpu_process_cpu_seconds_total"][("10", "main")] == 200 / TICK
    assert found["gpu_process_uninterruptible_seconds_total"] == {("10",): 10}
    assert found["gpu_process_major_faults_total"] == {("10",): 12}
    assert found["gpu_process_io_bytes_total"] == {("10", "read"): 4096, ("10", "write"): 512}
    assert found["gpu_process_affinity_cpus"] == {("10",): 12}
    assert found["gpu_process_device_files"] == {("10",): 2}
    assert found["gpu_process_cgroup_throttled_seconds_total"] == {("10",): 2.5}
    assert found["gpu_process_cgroup_cpus"] == {("10",): 2.5}
    assert set(found["gpu_process_cgroup_pressure_seconds_total"].values()) == {1.5}
    assert len(found["gpu_process_cgroup_pressure_seconds_total"]) == 3


def test_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 1\nnr_throttled 1\nthrottled_time 3000000000\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")

    exported = cgroup(tmp_path, None)

    assert (exported.cpus, exported.throttled, exported.pressure) == (None, 3.0, {})


def test_memory_that_new_processes_can_use(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, str], int | None]] = [
        ("MemAvailable:   2048 kB\n", {}, 2 << 20),
        ("MemAvailable:   2048 kB\n", {"max": "max", "current": "5"}, 2 << 20),
        ("MemAvailable:   2048 kB\n", {"max": "900", "current": "500"}, 400),
        ("MemAvailable:   2048 kB\n", {"max": "900", "current": "500", "stat": "file 300\ninactive_file 200\n"}, 600),
        ("MemAvailable:   2048 kB\n", {"max": "900", "current": "1000"}, 0),
        ("MemAvailable:   2048 kB\n", {"limit_in_bytes": "700", "usage_in_bytes": "500"}, 200),
        ("MemAvailable:   2048 kB\n", {"limit_in_bytes": "9223372036854771712", "usage_in_bytes": "500"}, 2 << 20),
        ("MemFree:        2048 kB\n", {"max": "900", "current": "500"}, 400),
        ("", {}, None),
    ]
    for number, (machine, group, expected) in enumerate(cases):
        proc, groups = tmp_path / f"proc{number}", tmp_path / f"groups{number}"
        write(proc, 10, maps=CUDA, cgroup="0::/job\n")
        (proc / "meminfo").write_text(machine)
        (groups / "job").mkdir(parents=True)
        for name, text in group.items():
            (groups / f"job/memory.{name}").write_text(text)
        procfs = Procfs(str(proc))
        found = values(HostCollector(procfs, Workloads(procfs, cgroup_root=groups)), 0)

        assert found.get("gpu_process_memory_available_bytes", {}).get(("10",)) == expected, (machine, group)


def test_a_program_under_the_hook_is_known_before_it_reports(tmp_path: Path) -> None:
    hooked = environment({"PYTHONPATH": "/lib"})
    for pid, environ in enumerate(({}, hooked, environment({"GPUGAUGE_HOOK": "0"}), {"PYTHONPATH": "/lib"}), 10):
        write(tmp_path, pid, maps=CUDA, environ=environ)

    found = values(HostCollector(Procfs(str(tmp_path))), 0)["gpu_process_host_info"]
    column = PROCESSES[0].labels.index("hook")
    assert {labels[0]: labels[column] for labels in found} == {"10": "", "11": "yes", "12": "", "13": ""}


def test_empty_visible_devices_differ_from_unset_ones(tmp_path: Path) -> None:
    write(tmp_path, 10, maps=CUDA, environ={"CUDA_VISIBLE_DEVICES": ""})
    write(tmp_path, 11, maps=CUDA, command=("other",))

    found = values(HostCollector(Procfs(str(tmp_path))), 0)

    assert {labels[0]: labels[4] for labels in found["gpu_process_host_info"]} == {"10": "none", "11": ""}


def test_unreadable_files_have_no_series(tmp_path: Path) -> None:
    folder = write(tmp_path, 10)
    for name in ("status", "environ", "cgroup", "cmdline", "maps"):
        (folder / name).unlink()
    shutil.rmtree(folder / "fd")

    found = values(HostCollector(Procfs(str(tmp_path))), 0, 10)

    assert found.keys() == {
        *("gpu_process_host_info", "gpu_process_cpu_seconds_total", "gpu_process_uninterruptible_seconds_total"),
        *("gpu_process_major_faults_total", "gpu_process_threads", "gpugauge_host_scan_cpu_seconds_total"),
        *("gpugauge_host_processes_denied", "gpugauge_host_processes_left_out"),
        "gpu_process_resident_bytes",
    }


def test_maps_are_read_again_for_young_processes_and_reused_pids(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("1000.0 0\n")
    write(tmp_path, 10, start=999 * TICK)
    write(tmp_path, 11, start=1 * TICK)
    collector = HostCollector(Procfs(str(tmp_path)))
    values(collector, 0)
    write(tmp_path, 10, start=999 * TICK, maps=CPU)
    write(tmp_path, 11, start=1 * TICK, maps=CPU)

    first = builds(values(collector, 10))
    write(tmp_path / "next", 11, start=1005 * TICK, maps=CPU)
    shutil.move(tmp_path / "11", tmp_path / "gone")
    shutil.move(tmp_path / "next/11", tmp_path / "11")
    second = builds(values(collector, 20))

    assert first.keys() == {"10"}
    assert second.keys() == {"10", "11"}


class Counting(Procfs):
    """Records the files read by pid."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.opened: list[tuple[int, str]] = []

    def read_once(self, pid: int, name: str) -> bytes:
        self.opened.append((pid, name))
        return super().read_once(pid, name)

    def read(self, pid: int, name: str, limit: int = 65536) -> bytes:
        self.opened.append((pid, name))
        return super().read(pid, name, limit)

    def take_read(self) -> list[tuple[int, str]]:
        opened, self.opened = sorted(self.opened), []
        return opened


def test_processes_without_gpu_are_read_once_per_minute(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("1000.0 0\n")
    write(tmp_path, 10, maps=CPU)
    write(tmp_path, 11, parent=10, start=TICK)
    write(tmp_path, 12, start=TICK)
    procfs = Counting(tmp_path)
    collector = HostCollector(procfs)
    values(collector, 0)
    procfs.take_read()

    values(collector, 10)
    near = {pid for pid, _ in procfs.take_read()}
    values(collector, 60)

    assert near == {10, 11}
    assert (12, "stat") in procfs.take_read()


def test_maps_are_read_again_when_the_age_grew_by_a_third(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("1000.0 0\n")
    write(tmp_path, 10, start=1000 * TICK)
    procfs = Counting(tmp_path)
    collector = HostCollector(procfs)
    reads = []
    for now in range(0, 200, 10):
        values(collector, now)
        reads += [now] if (10, "maps") in procfs.take_read() else []

    assert reads == [0, 10, 20, 30, 40, 60, 80, 110, 150]


def test_interval_of_scans_grows_with_their_cpu_time(tmp_path: Path) -> None:
    write(tmp_path, 10, maps=CPU)
    clock = iter([0.0, 0.4])
    collector = HostCollector(Procfs(str(tmp_path)), cpu_clock=lambda: next(clock))

    first = collector.collect(tick(0))

    assert collector.collect(tick(159)) is first
    with pytest.raises(StopIteration):
        collector.collect(tick(160))


def test_process_that_hangs_in_the_kernel_does_not_block_the_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 10, maps=CPU)
    released = threading.Event()

    class Hangs(Procfs):
        def read(self, pid: int, name: str, limit: int = 65536) -> bytes:
            if name == "maps":
                released.wait()
            return super().read(pid, name, limit)

    monkeypatch.setattr("gpugauge.collectors.process.host._HANGING_SECONDS", 0.6)
    monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 0.2)  # golden files wait longer
    collector = HostCollector(Hangs(str(tmp_path)))

    first = collector.collect(tick(0))
    try:
        while (collector._background.running or 0) <= 0.6:
            released.wait(0.05)
        with pytest.raises(HostError, match="hangs"):
            collector.collect(tick(1))
    finally:
        released.set()

    assert first.families == ()


@pytest.mark.everything
@pytest.mark.torch
def test_real_processes_with_and_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = "print(1, flush=True); input()"
    programs = {"cpu": f"import torch; {wait}", "": wait}
    running = {
        build: subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for build, code in programs.items()
    }
    try:
        for program in running.values():
            assert program.stdout
            program.stdout.readline()
        procfs = Procfs()
        exported = {name: torch_build(procfs, program.pid) for name, program in running.items()}
        collector = HostCollector(procfs, Workloads(procfs))
        monkeypatch.setattr("gpugauge.base.guard.START_WAIT_SECONDS", 30)
        found = values(collector, 0)
    finally:
        for program in running.values():
            program.communicate(b"\n")

    assert exported == {"cpu": "cpu", "": ""}
    pid = str(running["cpu"].pid)
    assert builds(found)[pid] == "cpu"
    assert str(running[""].pid) not in builds(found)
    assert found["gpu_process_cpu_seconds_total"][(pid, "main")] > 0
    assert found["gpu_process_affinity_cpus"][(pid,)] == len(os.sched_getaffinity(0))


def test_memory_of_a_cgroup(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], tuple[int | None, int | None]]] = [
        ({"memory.stat": "anon 100\nfile 7\nshmem 20\n", "memory.max": "1000\n"}, (120, 1000)),
        ({"memory.stat": "anon 100\nfile 7\n", "memory.max": "max\n"}, (100, None)),
        (
            {"memory.stat": "rss 1\ntotal_rss 100\ntotal_shmem 20\n", "memory.limit_in_bytes": "9223372036854771712\n"},
            (120, None),
        ),
        ({"memory.stat": "total_rss 100\n", "memory.limit_in_bytes": "5000\n"}, (100, 5000)),
        ({}, (None, None)),
    ]
    for number, (files, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)

        found = cgroup(folder, folder)
        assert (found.memory, found.memory_limit) == expected, files


def test_memory_and_cpus_of_a_process(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    folder = write(tmp_path, 10, maps=CPU)
    status = (folder / "status").read_text() if (folder / "status").exists() else ""
    lines = [line for line in status.splitlines() if not line.startswith(("Cpus_", "VmSwap"))]
    (folder / "status").write_text("\n".join([*lines, "VmSwap:\t 3 kB", "Cpus_allowed:\tff,00000001"]) + "\n")
    (folder / "statm").write_text("900 50 20 1 0 1 0\n")
    child = write(tmp_path, 11, parent=10)
    (child / "statm").write_text("900 5 1 1 0 1 0\n")

    found = values(HostCollector(Procfs(str(tmp_path))), 0)
    assert found["gpu_process_swapped_bytes"] == {("10",): 3 << 10}
    assert found["gpu_process_affinity_cpus"] == {("10",): 9}
    assert found["gpu_process_anonymous_bytes"] == {("10", "process"): 30 * page, ("10", "children"): 4 * page}
    assert "gpu_process_affinity_info" not in found, "a list of the kernel is needed for it"
