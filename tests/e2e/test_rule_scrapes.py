"""Alerts while the pods of exporters are replaced, scraped twice, or beside sidecars; most are drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpugauge.artifacts.rules import pack
from gpugauge.artifacts.rules.promql import PROCESS_JOB
from gpugauge.artifacts.rules.recording import HOURS_HELD, HOURS_LOST, TRAINING
from tests.artifacts.rules.rule_stories import PER_CAUSE
from tests.drawn import draws
from tests.e2e.ruletester import HERE, SECONDS, Case, Series, check, clocks, firing

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

MINUTES = 240
JOB = {"workload_job_kind": "job", "workload_namespace": "ml", "workload_job": "j"}


def case(name: str, series: Sequence[Series], *expected: dict[str, Any]) -> Case:
    return Case(name, series, expected, PER_CAUSE)


def lives(draw: random.Random) -> list[tuple[str, int, int]]:
    """Return the lives of the exporter's pods on a node: name, first minute and number of minutes."""
    found: list[tuple[str, int, int]] = []
    at = 0
    while at < MINUTES:
        length = draw.randint(50, 120)
        found.append((f"pod-{len(found)}", at, min(length, MINUTES - at)))
        at += length + draw.randint(0, 5)
    return found


def scraped(
    pods: Sequence[tuple[str, int, int]],
    node: str,
    rates: Sequence[tuple[str, Mapping[str, str], float]],
    *,
    twice: bool = False,
) -> list[Series]:
    """Return series of a node: the counters with a rate above 0 a second or at it, and the infos with rate -1."""
    jobs = ("one-gpugauge", "two-gpugauge") if twice else ("gpugauge",)
    return [
        (
            name,
            {"job": job, "instance": node, "pod": pod, **labels},
            f"{f'_x{first} ' if first else ''}"
            + (f"1x{length - 1}" if rate < 0 else f"0+{60 * rate:g}x{length - 1}")
            + " stale",
        )
        for pod, first, length in pods
        for job in jobs
        for name, labels, rate in (*rates, ("gpugauge_snapshot_timestamp_seconds", {}, 1.0))
    ]


def held_gpu(seed: int) -> Case:
    draw = random.Random(seed)
    process = {"process": "p"}
    rates = [
        ("training_seconds_total", {**process, "state": "held_idle"}, 1.0),
        ("training_state", {**process, "state": "held_idle"}, -1.0),
        ("gpu_process_host_info", {**process, **JOB}, -1.0),
    ]
    series = scraped(lives(draw), "n1", rates, twice=draw.random() < 0.5)
    expected = firing("GpuHeldIdle", MINUTES - 2, 150, 150, {"severity": "warning", **JOB})

    return case(f"a held GPU stays held, drawn by seed {seed}", series, expected)


def unused_gpu(seed: int) -> Case:
    draw = random.Random(seed)
    gpu = {"uuid": "G"}
    rates = [
        ("gpu_busy_seconds_total", {**gpu, "engine": "gpu"}, 0.0),
        ("gpu_observed_seconds_total", {**gpu, "engine": "gpu"}, 1.0),
        ("gpu_allocation_info", {**gpu, **JOB}, -1.0),
    ]
    series = scraped(lives(draw), "n1", rates, twice=draw.random() < 0.5)
    expected = firing("AllocatedGpuUnused", MINUTES - 2, 150, 150, {"severity": "info", **JOB})

    return case(f"an unused GPU stays unused, drawn by seed {seed}", series, expected)


def even_ranks(seed: int) -> Case:
    draw = random.Random(seed)
    series: list[Series] = []
    for rank in range(4):
        process = {"process": f"p{rank}"}
        rates = [
            ("torch_local_work_seconds_total", process, 0.9),
            ("training_seconds_total", {**process, "state": "training"}, 1.0),
            ("training_state", {**process, "state": "training"}, -1.0),
            ("training_start_timestamp_seconds", process, -1.0),
            ("torch_process_info", {**process, **JOB, "rank": str(rank), "world_size": "4", "run_id": "r"}, -1.0),
        ]
        series += scraped(lives(draw), f"n{rank}", rates, twice=draw.random() < 0.3)

    expected = firing("TrainingRankBehind", MINUTES - 1, MINUTES - 1, None, {})

    return case(f"no even rank is behind, drawn by seed {seed}", series, expected)


def gpu_hours(*, twice: bool) -> Case:
    process = {"process": "p"}
    rates = [
        ("training_gpu_held_seconds_total", process, 8.0),
        ("training_lost_seconds_total", {**process, "cause": "unknown"}, 2.0),
        ("torch_process_info", {**process, **JOB}, -1.0),
    ]
    begins = [0, 63, 123, 183, MINUTES]
    pods = [(f"pod-{n}", first, after - first) for n, (first, after) in enumerate(pairwise(begins))]
    sums = [
        f'sum_over_time({name}{{cluster="{HERE}"}}[{MINUTES}m:5m]) * 5 / {gpus}'
        for name, gpus in ((HOURS_HELD, 8), (HOURS_LOST, 2))
    ]
    whole = " and ".join(f"abs({minutes} - {MINUTES}) < 5" for minutes in sums)
    labels = ",".join(f'{key}="{value}"' for key, value in sorted({"cluster": HERE, **JOB}.items()))
    expected = {
        "expr": f"({whole}) > bool 0",
        "eval_time": f"{MINUTES}m",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1}],
    }
    names = {PROCESS_JOB, TRAINING, HOURS_HELD, HOURS_LOST}
    rules = [rule for group in pack.groups(PER_CAUSE)["groups"] for rule in group["rules"]]
    tree = {"groups": [{"name": "hours", "rules": [rule for rule in rules if rule.get("record") in names]}]}
    series = scraped(pods, "n1", rates, twice=twice)

    return Case(f"GPU hours go on{', scraped twice' * twice}", series, [expected], PER_CAUSE, tree=tree)


def test_while_exporters_are_replaced(tmp_path: Path) -> None:
    cases = [each(seed) for seed in draws(2, 20) for each in (held_gpu, unused_gpu, even_ranks)]

    check(tmp_path, [*cases, gpu_hours(twice=False), gpu_hours(twice=True)])


def crashed_attempts() -> Case:
    def rank(process: str, number: int, first: int, length: int, share: float) -> list[Series]:
        labels, pause = {"instance": "n1", "process": process}, f"_x{first} " if first else ""
        info = {**labels, **JOB, "rank": str(number), "world_size": "2", "run_id": ""}
        flat, state = f"{pause}1x{length}", {**labels, "state": "training"}
        return [
            ("torch_local_work_seconds_total", labels, f"{pause}0+{60 * share:g}x{length}"),
            ("training_seconds_total", state, f"{pause}0+60x{length}"),
            ("training_state", state, flat + " stale"),
            ("training_start_timestamp_seconds", labels, flat),
            ("torch_process_info", info, flat),
        ]

    series = [
        one
        for number in range(2)
        for name, first, length, share in (("a", 0, 60, 0.9), ("b", 61, 2, 0.3), ("c", 64, 2, 0.3), ("d", 67, 100, 0.9))
        for one in rank(f"{name}{number}", number, first, length, share)
    ] + clocks([("n1", None)])

    name = "attempts that crashed are no measure for the living"
    return case(name, series, firing("TrainingRankBehind", 160, 160, None, {}))


NODE, SIDECAR = {"job": "gpugauge", "instance": "n1"}, {"job": "ml/gpugauge-sidecar", "instance": "n1", "pod": "t-0"}


def sidecar_and_exporter() -> Case:
    series = [("up", NODE, "0x60"), ("up", SIDECAR, "1x60")]
    age = "gpugauge_snapshot_timestamp_seconds"
    series += [(age, NODE, "0x60"), (age, SIDECAR, "0+60x60")]
    expected = [
        firing(name, 40, 5, 5, {"severity": "warning", "instance": "n1"}) for name in ("ExporterDown", "ExporterBlind")
    ]

    return case("a sidecar hides no exporter of its node", series, *expected)


def sidecar_alone(released: bool) -> Case:
    series = [("gpugauge_driver_up", {**SIDECAR, "reason": "off"}, "0x60")]
    series += [("gpugauge_driver_up", {**NODE, "reason": "released"}, "0x60")] if released else []

    name = f"a sidecar is not blind{' beside a released driver' if released else ''}"
    return case(name, series, firing("ExporterBlind", 59, 59, None, {}))


def free_gpu() -> Case:
    gpu = {"instance": "n1", "uuid": "G"}
    series = [
        ("gpu_busy_seconds_total", {**gpu, "engine": "gpu"}, "0x100"),
        ("gpu_observed_seconds_total", {**gpu, "engine": "gpu"}, "0+60x100"),
        ("gpu_allocation_info", {**gpu, **JOB}, "_x60 1x60"),
        *clocks([("n1", None)]),
    ]
    expected = [
        firing("AllocatedGpuUnused", 85, 85, None, {}),
        firing("AllocatedGpuUnused", 98, 3, 3, {"severity": "info", **JOB}),
    ]

    return case("a GPU that was free is not unused at once", series, *expected)


def old_errors() -> Case:
    process = {"instance": "n1", "process": "p"}
    series = [
        ("torch_memory_ooms_total", {**process, "uuid": "G"}, "3x60"),
        ("torch_process_info", {**process, **JOB}, "1x60"),
        ("gpu_process_start_timestamp_seconds", process, "-172800x60"),
        *clocks([("n1", None)]),
    ]

    name = "old memory errors are not news to an empty Prometheus"
    return case(name, series, firing("TrainingOutOfMemory", 59, 59, None, {}))


def another_index() -> Case:
    node = {"instance": "n1"}
    series = [
        ("gpu_info", {**node, "uuid": "G", "index": "1"}, "1x20 _x40"),
        ("gpu_info", {**node, "uuid": "G", "index": "0"}, "_x20 1x40"),
        ("gpu_mig_info", {**node, "uuid": "MIG-a", "parent_uuid": "G"}, "1x60"),
        ("gpu_info", {"instance": "n2", "uuid": "H", "index": "0"}, "1x60"),
        ("gpu_process_memory_used_bytes", {"instance": "n2", "process": "p", "uuid": "H"}, "1000x60"),
        ("gpu_process_host_info", {"instance": "n2", "process": "p", **JOB}, "1x60"),
    ]
    one = {
        "expr": f'count(gpugauge:job_devices:info{{cluster="{HERE}"}})',
        "eval_time": "23m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }

    return case("another index of a GPU with MIG devices leaves all jobs their devices", series, one)


def cases() -> Iterator[Case]:
    yield from (crashed_attempts(), sidecar_and_exporter(), sidecar_alone(False), sidecar_alone(True))
    yield from (free_gpu(), old_errors(), another_index())


def test_what_scrapes_see(tmp_path: Path) -> None:
    check(tmp_path, [*cases()])
