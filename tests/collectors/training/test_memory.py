"""The memory of trainings: drawn GPUs whose room and leaks are known, and real processes that leak host memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from qa.worlds.scraped import node_of
from qa.worlds.timeline import ROWS

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.host import PROCESSES
from gpugauge.collectors.process.host_scan import HostScan
from gpugauge.collectors.training.memory import MemoryCollector
from gpugauge.driver.api import DriverView
from gpugauge.metric import Family, families
from gpugauge.snapshot import Section
from gpugauge.workload.procfs import Procfs

Samples = Mapping[str, Mapping[tuple[str, ...], float]]


def tick(now: float, samples: Samples) -> Tick:
    found = tuple(Family(ROWS[name], tuple(values.items())) for name, values in samples.items())
    return Tick(now, now, DriverView(True, "ok"), node=node_of([Section("x", found)], now, now))


def values(section: Section) -> dict[str, dict[tuple[str, ...], float]]:
    return {f.metric.name: {k: v for k, v in f.samples if isinstance(v, (int, float))} for f in section.families}


def info(process: str, job: str) -> tuple[str, ...]:
    known = {"process": process, "world_size": "8", "workload_job_kind": "slurm", "workload_job": job}
    return tuple(known.get(label, "") for label in ROWS["torch_process_info"].labels)


# What the program keeps, in what process. Pages of a file are not memory that it keeps.
LEAKS = {
    "process": "kept.append(bytearray(os.urandom(1)) * SIZE)",
    "children": "kept.append(bytearray(os.urandom(1)) * SIZE) if child else None",
    "file": "file[SIZE * i]; [file[j] for j in range(SIZE * i, SIZE * (i + 1), 4096)]",
    "none": "bytearray(SIZE)",
}
PROGRAM = """
import mmap, os, sys, time
SIZE, kept, i = 1 << 19, [], 0
with open(sys.argv[1], "wb") as f:
    f.truncate(400 * SIZE)
file = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
parent = os.getpid()
child = os.fork() == 0
begin = time.monotonic()
while i < 390 and os.getppid() != 1:
    if child or {both}:
        {leak}
    i += 1
    time.sleep(max(0.0, begin + 0.02 * i - time.monotonic()))
time.sleep(60)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


@pytest.mark.everything
def test_real_processes_that_keep_memory(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    kinds = list(LEAKS)
    for kind in kinds:
        source = PROGRAM.format(leak=LEAKS[kind], both=kind != "children")
        # A parent that keeps memory has a child that keeps none.
        source = source.replace("if child or True", "if not child") if kind == "process" else source
        started.append(subprocess.Popen([sys.executable, "-c", source, str(tmp_path / kind)]))
    names = [Procfs().process_id(process.pid) for process in started]
    scan, collector = HostScan(Procfs()), MemoryCollector()
    shown: dict[str, dict[tuple[str, ...], float]] = {}
    for i in range(45):
        time.sleep(0.1)
        now = time.monotonic()
        found = scan.scan([process.pid for process in started], now)
        for process in found:
            process.torch = "cpu"  # of other programs no growth is stated
        rows = families(PROCESSES, [((p.process,), p) for p in found if p.process in names])
        collector._due = 0.0  # the program leaks fast, so that the test need not wait
        section = collector.collect(
            Tick(now, now, DriverView(True, "ok"), node=node_of([Section("host", rows)], now, now))
        )
        stated = values(section).get("training_host_memory_growth_bytes", {})
        shown |= {"growth": {**shown.get("growth", {}), **stated}} if stated and i > 32 else {}
    growth = {(kinds[names.index(p)], part): v for (p, part), v in shown.get("growth", {}).items() if part != "cgroup"}
    # On a machine that is busy a program falls behind: then nothing is stated.
    assert set(growth) <= {("process", "process"), ("children", "children")}
    true = (1 << 19) / 0.02
    assert all(0.3 * true < rate < 1.2 * true for rate in growth.values())
    assert growth, "no leak was found"


def test_growth_is_stated_of_programs_with_torch_only() -> None:
    collector = MemoryCollector()
    builds = {"hooked": "", "loaded": "cuda", "other": ""}
    labels = ROWS["gpu_process_host_info"].labels
    known = {tuple({"process": p, "torch_build": b}.get(name, "") for name in labels): 1.0 for p, b in builds.items()}
    for i in range(40):
        grown: dict[tuple[str, ...], float] = {(process, "process"): 1e9 + i * 1e7 for process in builds}
        hooked = {info("hooked", "7"): 1.0}
        samples: Samples = {"gpu_process_host_info": known, "gpu_process_anonymous_bytes": grown}
        stated = values(collector.collect(tick(10.0 * i, {**samples, "torch_process_info": hooked})))

    assert set(stated["training_host_memory_growth_bytes"]) == {("hooked", "process"), ("loaded", "process")}
