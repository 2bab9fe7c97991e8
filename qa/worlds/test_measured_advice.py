"""The advice on causes has the values that are known: drawn GPUs, limits and ranks."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from tests.drawn import seeds
from tests.status.statusfacts import family

from gpugauge.metric import Family
from gpugauge.status.advice import Exported, Subject, advice_of
from gpugauge.status.model import ProcessStatus
from gpugauge.verdict.causes import CAUSES

SEEDS = range(60)
COOLING, SUPPLY = "the cooling (fans, air flow, dust)", "the power supply, which asks the GPU to slow down"


def change(cause: str, families: dict[str, Family], **facts: Any) -> str:
    """Return what to change about the main cause of process p."""
    process = ProcessStatus(process="p", hook=True, state="training", limited_by=cause, **facts)
    (found,) = (row.change for row in advice_of(Subject(Exported(families), process)) if row.cause == cause)
    return found


@seeds(SEEDS)
def test_the_narrowest_link_of_the_process_is_named(seed: int) -> None:
    dice = random.Random(seed)
    gpus = {f"GPU-{n}": (dice.choice([1, 4, 8, 16]), dice.choice([8, 16])) for n in range(dice.randint(1, 4))}
    gpus = {uuid: (min(now, most), most) for uuid, (now, most) in gpus.items()}
    own = dice.sample(sorted(gpus), dice.randint(1, len(gpus)))
    unknown = dice.choice([None, None, *own])
    widths = family(
        "gpu_pcie_width",
        *(({"uuid": u, "when": "current"}, now) for u, (now, _) in gpus.items() if u != unknown),
        *(({"uuid": u, "when": "max"}, most) for u, (_, most) in gpus.items()),
    )

    text = change("transfer", {"gpu_pcie_width": widths}, devices=own)

    narrow = [gpus[uuid] for uuid in own if gpus[uuid][0] < gpus[uuid][1]]
    if unknown is not None:
        assert text == CAUSES["transfer"].advice
    elif narrow:
        now, most = map(int, re.findall(r"only (\d+) of (\d+) lanes", text)[0])
        assert (now, most) in narrow
        assert all(now * theirs <= mine * most for mine, theirs in narrow)
    else:
        assert "has all" in text
        assert "seating" not in text


@seeds(SEEDS)
def test_what_lowers_the_clocks_says_what_to_check(seed: int) -> None:
    dice = random.Random(seed)
    checks = {"sw_thermal_slowdown": COOLING, "hw_thermal_slowdown": COOLING, "hw_power_brake_slowdown": SUPPLY}
    active = [reason for reason in (*checks, "sw_power_cap", "gpu_idle") if dice.random() < 0.4]
    other = [reason for reason in checks if dice.random() < 0.5]  # of a GPU that the process does not use
    degrees = dice.choice([None, 66.0, 91.0])
    exported = {
        "gpu_clocks_event_active": family(
            "gpu_clocks_event_active",
            *(({"uuid": "GPU-0", "reason": reason}, int(reason in active)) for reason in (*checks, "sw_power_cap")),
            *(({"uuid": "GPU-1", "reason": reason}, 1) for reason in other),
        ),
        "gpu_temperature_celsius": family(
            "gpu_temperature_celsius",
            *([] if degrees is None else [({"uuid": "GPU-0", "sensor": "gpu"}, degrees)]),
            ({"uuid": "GPU-0", "sensor": "memory"}, 99),
            ({"uuid": "GPU-1", "sensor": "gpu"}, 33),
        ),
    }

    text = change("throttled", exported, devices=["GPU-0"])

    wanted = {checks[reason] for reason in active if reason in checks}
    if not wanted:
        assert text == CAUSES["throttled"].advice
        return
    assert {check for check in checks.values() if check in text} == wanted
    assert (f"{degrees:.0f} °C" in text if degrees else "°C" not in text) or COOLING not in wanted
    assert "33 °C" not in text
    assert "99 °C" not in text


@pytest.mark.parametrize("limit", [None, 0.5, 1.0, 2.0, 4.0, 5.0, 64.0])
@pytest.mark.parametrize("workers", ["", "0", "1", "4"])
def test_the_cpu_limit_and_what_is_needed(limit: float | None, workers: str) -> None:
    exported = (
        {}
        if limit is None
        else {"gpu_process_cgroup_cpus": family("gpu_process_cgroup_cpus", ({"process": "p"}, limit))}
    )

    text = change("cpu_limited", exported, loader={"workers": workers} if workers else {})

    if limit is None or not workers or limit >= 1 + int(workers):
        assert text == CAUSES["cpu_limited"].advice
    else:
        assert text.startswith(f"raise its CPU limit from {limit:g} to at least {1 + int(workers)} CPUs")


@pytest.mark.parametrize("job", [None, "506", "ann/7_1", 'a"b', "x kill 1", "nvidia-smi -r", "ü"])
@pytest.mark.parametrize("ranks", [None, 1, 2, 16])
def test_the_query_for_the_slowest_rank(ranks: int | None, job: str | None) -> None:
    text = change("waiting_for_peers", {}, world_size=ranks, workload={"job": job} if job else {})

    if ranks is None or ranks < 2:
        assert text == CAUSES["waiting_for_peers"].advice
        return
    assert text.startswith(f"find what limits the slowest of its {ranks} ranks; in Prometheus: topk(1, ")
    matcher = f'{{workload_job="{job}"}}' if job in {"506", "ann/7_1"} else f'{{world_size="{ranks}"}}'
    assert text.endswith(f"torch_process_info{matcher})")
