"""The memory of trainings: drawn GPUs whose room and leaks are known, and real processes that leak host memory."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.host import PROCESSES
from gpugauge.collectors.process.host_scan import HostScan
from gpugauge.collectors.training.memory import MemoryCollector
from gpugauge.driver.api import DriverView
from gpugauge.metric import Family, families
from gpugauge.snapshot import Section
from gpugauge.workload.procfs import Procfs
from tests.collectors.training.timeline import ROWS

GIB, MIB = 1 << 30, 1 << 20
Samples = Mapping[str, Mapping[tuple[str, ...], float]]


def tick(now: float, samples: Samples) -> Tick:
    found = tuple(Family(ROWS[name], tuple(values.items())) for name, values in samples.items())
    return Tick(now, now, DriverView(True, "ok"), sections=[Section("x", found)])


def values(section: Section) -> dict[str, dict[tuple[str, ...], float]]:
    return {f.metric.name: {k: v for k, v in f.samples if isinstance(v, (int, float))} for f in section.families}


def info(process: str, job: str) -> tuple[str, ...]:
    known = {"process": process, "world_size": "8", "workload_job_kind": "slurm", "workload_job": job}
    return tuple(known.get(label, "") for label in ROWS["torch_process_info"].labels)


def ranks(draw: random.Random) -> dict[str, dict[str, float]]:
    """Return drawn ranks of one job, one on each GPU: their memory, and their leak in bytes by step."""
    total = draw.choice([24, 40, 80]) * GIB
    found = {}
    for i in range(draw.randint(1, 4)):
        after = draw.uniform(0.05, 0.3) * total
        transient = draw.uniform(0.01, 0.4) * total
        cache = draw.uniform(0.0, 0.1) * total
        leak = draw.choice([0.0, 0.0, 10 ** draw.uniform(3, 6)])
        outside = draw.uniform(0.0, 0.05) * total  # contexts, and what no allocator of torch holds
        known = {"total": total, "after": after, "transient": transient, "cache": cache}
        found[f"p{i}"] = {**known, "leak": leak, "outside": outside}
    return found


def series(found: Mapping[str, dict[str, float]], steps: float, noise: random.Random) -> Samples:
    """Return the series after so many steps."""
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for i, (process, r) in enumerate(found.items()):
        key = (process, f"GPU-{i}")
        after = r["after"] + r["leak"] * steps
        peak = after + r["transient"]
        reserved = max(peak, r["after"] + r["transient"] + r["cache"])
        free = r["total"] - r["outside"] - reserved
        rows: dict[str, tuple[tuple[str, ...], float]] = {
            "torch_memory_step_allocated_bytes": (key, after + noise.uniform(0, 0.05) * MIB),
            "torch_memory_allocated_peak_bytes": (key, peak),
            "torch_memory_reserved_bytes": (key, reserved),
            "torch_memory_limit_bytes": (key, r["total"]),
            "gpu_memory_free_bytes": (key[1:], free),
            "torch_steps_total": ((process,), steps),
            "torch_process_info": (info(process, "7"), 1.0),
        }
        for name, (labels, value) in rows.items():
            samples.setdefault(name, {})[labels] = value
    return samples


def test_drawn_ranks_have_their_room_and_their_leaks() -> None:
    draw, stated = random.Random(23), 0
    for _ in range(60):
        found, collector, rate = ranks(draw), MemoryCollector(), draw.uniform(1.0, 20.0)
        count = 100
        least = min((r["total"] * 0.25 / r["leak"] for r in found.values() if r["leak"]), default=1e12)
        rate = min(rate, least / (5.0 * count))  # none is full before the end
        for i in range(count):
            section = collector.collect(tick(5.0 * i, series(found, rate * 5.0 * i, draw)))
        shown, steps = values(section), rate * 5.0 * (count - 1)
        peaks = {}
        for i, (process, r) in enumerate(found.items()):
            key = (process, f"GPU-{i}")
            used = r["after"] + r["leak"] * steps + r["transient"]
            peaks[process] = used
            space = r["total"] - r["outside"] - used  # what can be allocated beyond the peak
            assert shown["training_memory_headroom_bytes"][key] == pytest.approx(space)
            ratio = shown["training_batch_headroom_ratio"][(process,)]
            larger = r["after"] + r["leak"] * steps + ratio * r["transient"]
            assert larger <= r["total"] - r["outside"] + ratio * 0.05 * MIB  # the noise of a sample
            held = max(used, r["after"] + r["transient"] + r["cache"])
            assert shown["training_memory_fragmentation_ratio"][key] == pytest.approx(1 - used / held)
            growth = shown.get("training_memory_step_growth_bytes", {}).get(key)
            if not r["leak"]:
                assert growth is None
            elif growth is not None:
                stated += 1
                low, high = (shown[f"training_memory_step_growth_{b}_bytes"][key] for b in ("lower", "upper"))
                assert low <= r["leak"] <= high
                seconds = shown.get("training_memory_full_seconds", {}).get(key)
                true = space / (r["leak"] * rate)
                assert seconds is None or seconds == pytest.approx(true, rel=0.1)
                assert seconds is not None or true > 25 * 86_400
            else:
                assert r["leak"] * steps < 4 * MIB, "a leak without noise is missed"
        for (process,), ratio in shown.get("training_memory_rank_ratio", {}).items():
            middle = sorted(peaks.values())
            half = len(middle) // 2
            median = middle[half] if len(middle) % 2 else (middle[half - 1] + middle[half]) / 2
            assert ratio == pytest.approx(peaks[process] / median)
        assert ("training_memory_rank_ratio" in shown) == (len(found) > 1)
    assert stated > 20


def test_a_peak_that_was_reset_shows_no_fragmentation() -> None:
    found = {"p0": {"total": 8 * GIB, "after": GIB, "transient": GIB, "cache": GIB, "leak": 0.0, "outside": 0.0}}
    collector, noise = MemoryCollector(), random.Random(1)
    first = values(collector.collect(tick(0.0, series(found, 1, noise))))
    found["p0"]["transient"] = 0.1 * GIB
    found["p0"]["cache"] = 1.9 * GIB
    second = values(collector.collect(tick(5.0, series(found, 2, noise))))

    assert "training_memory_fragmentation_ratio" in first
    assert "training_memory_fragmentation_ratio" not in second
    assert second["training_memory_headroom_bytes"] == first["training_memory_headroom_bytes"]


def test_a_rank_that_was_not_seen_to_step_is_not_compared() -> None:
    found = {
        f"p{i}": {"total": 8.0 * GIB, "after": GIB, "transient": GIB, "cache": 0, "leak": 0, "outside": 0}
        for i in range(2)
    }
    samples = {name: dict(rows) for name, rows in series(found, 1, random.Random(1)).items()}
    del samples["torch_memory_step_allocated_bytes"][("p1", "GPU-1")]

    assert "training_memory_rank_ratio" not in values(MemoryCollector().collect(tick(0.0, samples)))


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
        section = collector.collect(Tick(now, now, DriverView(True, "ok"), sections=[Section("host", rows)]))
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
