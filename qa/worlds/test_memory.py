"""The memory of trainings on drawn GPUs, whose room and leaks are known."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from tests.collectors.training.test_memory import Samples, info, tick, values
from tests.drawn import EVERYTHING, seeds

from gpugauge.collectors.base import Tick
from gpugauge.collectors.training.memory import MemoryCollector, _free, _ranks
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, MigReading
from gpugauge.node.node import Node
from gpugauge.sessions.session import Session
from gpugauge.verdict.memory.trend import DeviceMemory
from gpugauge.wire import messages as wire

DRAWN = 60 if EVERYTHING else 20  # machines
GIB, MIB = 1 << 30, 1 << 20


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


def series(found: Mapping[str, dict[str, float]], steps: float, noise: random.Random, kind: str = "GPU") -> Samples:
    """Return the series after so many steps, on whole GPUs or on MIG devices."""
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for i, (process, r) in enumerate(found.items()):
        key = (process, f"{kind}-{i}")
        after = r["after"] + r["leak"] * steps
        peak = after + r["transient"]
        reserved = max(peak, r["after"] + r["transient"] + r["cache"])
        free = r["total"] - r["outside"] - reserved
        rows: dict[str, tuple[tuple[str, ...], float]] = {
            "torch_memory_step_allocated_bytes": (key, after + noise.uniform(0, 0.05) * MIB),
            "torch_memory_allocated_peak_bytes": (key, peak),
            "torch_memory_reserved_bytes": (key, reserved),
            "torch_memory_limit_bytes": (key, r["total"]),
            "torch_steps_total": ((process,), steps),
            "torch_process_info": (info(process, "7"), 1.0),
        }
        if kind == "GPU":
            rows["gpu_memory_free_bytes"] = key[1:], free
        else:
            held = noise.choice([0.0, 0.01 * r["total"]])  # for the driver
            parts = {"total": r["total"], "used": r["total"] - free - held, "reserved": held}
            rows |= {f"gpu_mig_memory_{part}_bytes": (key[1:], size) for part, size in parts.items()}
        for name, (labels, value) in rows.items():
            samples.setdefault(name, {})[labels] = value
    return samples


def test_drawn_ranks_have_their_room_and_their_leaks() -> None:
    draw, stated = random.Random(23), 0
    for _ in range(DRAWN):
        found, collector, rate = ranks(draw), MemoryCollector(), draw.uniform(1.0, 20.0)
        count = 100
        least = min((r["total"] * 0.25 / r["leak"] for r in found.values() if r["leak"]), default=1e12)
        kind = draw.choice(["GPU", "MIG"])
        rate = min(rate, least / (5.0 * count))  # none is full before the end
        for i in range(count):
            section = collector.collect(tick(5.0 * i, series(found, rate * 5.0 * i, draw, kind)))
        shown, steps = values(section), rate * 5.0 * (count - 1)
        peaks = {}
        for i, (process, r) in enumerate(found.items()):
            key = (process, f"{kind}-{i}")
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
    assert stated > DRAWN / 3


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


def test_a_device_without_name_or_peak_has_no_room() -> None:
    devices = (wire.Device(0, None, 5, 9, limit=20), wire.Device(1, "GPU-1", 5, limit=20))
    session = Session(wire.Hello("a" * 32, 0), 1, 1000, wire.Snap("a" * 32, 1, devices=devices))
    node = Node(timestamp=1.0, monotonic=1.0, sessions={"p": session})

    assert values(MemoryCollector().collect(Tick(1.0, 1.0, DriverView(True, "ok"), node=node))) == {}
    assert node.memory == {}


@seeds(range(100))
def test_ranks_are_compared_by_all_their_memory_once_they_have_stepped(seed: int) -> None:
    """A rank has one GPU or more. It has stepped if one of them has a value after a step."""
    draw = random.Random(seed)
    sessions, on_gpus, truth = {}, {}, dict[tuple[str, ...], dict[str, float]]()
    for number in range(draw.randint(1, 6)):
        job = draw.choice((("", "", ""), ("", "slurm", "7"), ("ml", "job", "a")))
        world = draw.choice(("", "1", "2", "16", "x"))
        memories = [
            DeviceMemory(peak=draw.choice((None, 5.0, 7.5)), after_step=draw.choice((None, None, 1.0)))
            for _ in range(draw.randint(1, 3))
        ]
        hello = wire.Hello("a" * 32, 0, facts={"world_size": world} if world else {})
        sessions[f"p{number}"] = Session(hello, 1, 1000, owner=(*job, "cgroup", "ann"))
        on_gpus[f"p{number}"] = {f"GPU-{place}": memory for place, memory in enumerate(memories)}
        if job[1] and world in {"2", "16"} and [m for m in memories if m.after_step]:
            truth.setdefault(job, {})[f"p{number}"] = sum(memory.peak or 0.0 for memory in memories)
    assert _ranks(Node(sessions=sessions), on_gpus) == truth


@seeds(range(100))
def test_the_room_of_a_mig_device_is_what_the_driver_has_not_given_away(seed: int) -> None:
    draw = random.Random(seed)
    truth: dict[str, float | None] = {"GPU-9": None, "MIG-9": None}
    devices = []
    for number in range(draw.randint(1, 3)):
        free, up = draw.choice((None, 0, 70)), draw.random() < 0.8
        parts = []
        for place in range(draw.randint(0, 3)):
            total, used, reserved = (
                draw.choice((None, 20, 40)),
                draw.choice((None, 0, 15, 30)),
                draw.choice((None, 0, 4)),
            )
            parts.append(
                MigReading(
                    *(f"MIG-{number}{place}", place, 0),
                    memory_total_bytes=total,
                    memory_used_bytes=used,
                    memory_reserved_bytes=reserved,
                )
            )
            known = up and total is not None and used is not None
            truth[f"MIG-{number}{place}"] = max(0, (total or 0) - (used or 0) - (reserved or 0)) if known else None
        reading = DeviceReading(uuid=f"GPU-{number}", memory_free_bytes=free, mig_instances=tuple(parts) or None)
        devices.append(Device(f"GPU-{number}", up, "ok" if up else "lost", reading, {}))
        truth[f"GPU-{number}"] = free if up else None
    node = Node(devices=tuple(devices))
    assert {uuid: _free(node, uuid) for uuid in truth} == truth


@seeds(range(40))
def test_a_sample_and_a_verdict_are_due_after_five_seconds_or_half_a_second_less(seed: int) -> None:
    draw = random.Random(seed)
    for collector in (MemoryCollector(), VerdictCollector()):
        now, last, section = draw.uniform(1e3, 1e6), float("-inf"), None
        period = draw.choice((1.0, 2.0, 4.0, 4.6, 5.0))
        for _ in range(20):
            now += period + draw.uniform(-0.1, 0.1)
            found = collector.collect(tick(now, {}))
            assert (found is not section) == (now - last >= 4.5)
            last, section = (last if found is section else now), found


@seeds(range(20))
def test_samples_are_kept_for_five_minutes_without_the_process(seed: int) -> None:
    draw = random.Random(seed)
    collector, gap = MemoryCollector(), draw.choice((5.0, 299.0, 300.0, 301.0, 400.0, 900.0))
    found = {"p0": {"total": 8.0 * GIB, "after": GIB, "transient": GIB, "cache": 0, "leak": 0, "outside": 0}}
    collector.collect(tick(1000.0, series(found, 1, draw)))
    collector.collect(tick(1000.0 + gap, {}))
    assert bool(collector._samples) == (gap <= 300.0)
