"""The advice on causes has the values that are known: drawn GPUs, limits and ranks."""

from __future__ import annotations

import random
import re
import statistics
from typing import Any

import pytest
from tests.drawn import seeds
from tests.status.test_advice import host, session, subject

from gpugauge.driver.api import Device, DeviceReading
from gpugauge.faults.repair import ANY_SITE
from gpugauge.node.node import Gain, Judged, Memory, Node, OnDevice, Verdict
from gpugauge.sessions.session import Session
from gpugauge.status.advice import advice_of, by_cause, words
from gpugauge.status.measured_advice import Subject, waiting_for_peers
from gpugauge.status.model import ProcessStatus
from gpugauge.verdict.causes import CAUSES
from gpugauge.web.page.links import parts
from gpugauge.wire import messages as wire
from gpugauge.workload.processfiles import Cgroup

SEEDS = range(60)
COOLING = "the cooling (fans, air flow, inlet temperature, coolant)"
SUPPLY = "the power supply, which asks the GPU to slow down"


def change(cause: str, **facts: Any) -> str:
    """Return what to change about the main cause of process p."""
    (found,) = (row.change for row in advice_of(subject(limited_by=cause, **facts)) if row.cause == cause)
    return found


@seeds(SEEDS)
def test_causes_that_are_named_together_have_their_advice_in_this_order(seed: int) -> None:
    """Where the main cause is not sure, the two largest are named, and the advice is on both."""
    dice = random.Random(seed)
    names = dice.sample(sorted(CAUSES.keys() - {"unknown"}), dice.randint(1, 3))
    causes = {name: dice.uniform(0.06, 0.3) for name in names} | {"unknown": dice.uniform(0.05, 0.4)}
    gains = {name: Gain(1.2, 1.1, 1.3, "gpu") for name in names if dice.random() < 0.3}
    about = subject(limited_by="unknown", causes=causes, gains=gains, loader={"workers": "4", "pin_memory": "no"})

    found = advice_of(about)
    text = words(found, about.mains) or ""
    ranked = sorted(names, key=causes.__getitem__, reverse=True)[:2]
    if causes[ranked[0]] <= causes["unknown"]:
        assert about.mains == ["unknown"]
        assert "torch.profiler" in text or gains
        return
    assert about.mains == ranked
    assert "no measured value" not in text
    each = [next(row.change for row in found if row.cause == name) for name in ranked]
    assert [row.cause for row in found][: len(ranked)] == ranked
    steps = re.split("; (?:also|then) ", "; also ".join(each))
    assert text.startswith("; ".join(f"{n}. {step}" for n, step in enumerate(steps, 1)) if steps[1:] else steps[0])
    node = Node(judged={"p": Judged(Verdict("training", "inside", causes, "unknown"), gains=gains)})
    assert list(by_cause("p", (), node, ANY_SITE))[: len(ranked)] == ranked


@seeds(SEEDS)
def test_the_narrowest_link_of_the_process_is_named(seed: int) -> None:
    dice = random.Random(seed)
    gpus = {f"GPU-{n}": (dice.choice([1, 4, 8, 16]), dice.choice([8, 16])) for n in range(dice.randint(1, 4))}
    gpus = {uuid: (min(now, most), most) for uuid, (now, most) in gpus.items()}
    own = dice.sample(sorted(gpus), dice.randint(1, len(gpus)))
    unknown = dice.choice([None, None, *own])
    devices = tuple(
        Device(u, True, "ok", DeviceReading(pcie_width=None if u == unknown else now, pcie_width_max=most), {})
        for u, (now, most) in gpus.items()
    )

    text = change("transfer", gpus=devices, devices=own)

    narrow = [gpus[uuid] for uuid in own if gpus[uuid][0] < gpus[uuid][1]]
    if unknown is not None:
        assert text == CAUSES["transfer"].advice
    elif narrow:
        now, most = map(int, re.findall(r"only (\d+) of (\d+) lanes", text)[0])
        assert (now, most) in narrow
        assert all(now * theirs <= mine * most for mine, theirs in narrow)
    else:
        assert "lanes" not in text
        assert text.startswith("pin_memory=True")


@seeds(SEEDS)
def test_what_lowers_the_clocks_says_what_to_check(seed: int) -> None:
    dice = random.Random(seed)
    checks = {"sw_thermal_slowdown": COOLING, "hw_thermal_slowdown": COOLING, "hw_power_brake_slowdown": SUPPLY}
    active = [reason for reason in (*checks, "sw_power_cap", "gpu_idle") if dice.random() < 0.4]
    other = [reason for reason in checks if dice.random() < 0.5]  # of a GPU that the process does not use
    degrees = dice.choice([None, 66, 91])
    readings = [(active, degrees), (other, 33)]
    devices = tuple(
        Device(
            f"GPU-{index}",
            True,
            "ok",
            DeviceReading(clocks_event_reasons=reasons, temperature_celsius=heat),
            {},
        )
        for index, (reasons, heat) in enumerate(readings)
    )

    text = change("throttled", gpus=devices, devices=["GPU-0"])

    wanted = {checks[reason] for reason in active if reason in checks}
    if not wanted:
        assert text == CAUSES["throttled"].advice
        return
    assert {check for check in checks.values() if check in text} == wanted
    assert (f"{degrees:.0f} °C" in text if degrees else "°C" not in text) or COOLING not in wanted
    assert "33 °C" not in text


@pytest.mark.parametrize("limit", [None, 0.5, 1.0, 2.0, 4.0, 5.0, 64.0])
@pytest.mark.parametrize("workers", ["", "0", "1", "4"])
def test_the_cpu_limit_and_what_is_needed(limit: float | None, workers: str) -> None:
    limited = host(cgroup=Cgroup(limit, None, {}))

    text = change("cpu_limited", hosts=limited, loader={"workers": workers} if workers else {})

    if limit is None or not workers or limit >= 1 + int(workers):
        assert text == CAUSES["cpu_limited"].advice
    else:
        assert text.startswith(f"raise its CPU limit from {limit:g} to at least {1 + int(workers)} CPUs")


@pytest.mark.parametrize("ranks", [None, 1, 2, 16])
def test_the_slowest_rank_is_found_with_a_command(ranks: int | None) -> None:
    text = change("waiting_for_peers", world_size=ranks)

    if ranks is None or ranks < 2:
        assert text == CAUSES["waiting_for_peers"].advice
        return
    assert text.startswith(f"find the slow one of its {ranks} ranks: the one that does not wait, ")
    assert [part for part, is_command in parts(text) if is_command] == ["gpugauge status --url NODE:10478"]


@seeds(SEEDS)
def test_the_slowest_rank_is_named_if_it_is_here(seed: int) -> None:
    """Some of the ranks of one job are here, beside another job; each works a drawn share of its time."""
    dice = random.Random(seed)
    ranks, slow = dice.choice([2, 4, 8]), dice.choice([(), (0,), (1,), (0, 1)])
    works = {rank: dice.uniform(0.9, 1.0) if rank in slow else dice.uniform(0.3, 0.5) for rank in range(ranks)}
    here = range(ranks) if dice.random() < 0.5 else sorted(dice.sample(range(ranks), dice.randint(1, ranks)))
    asked, cause = dice.choice(here), dice.choice(["data_loading", "unknown", None])
    sessions, judged = {"other": rank_of(0, 2, uid=1)}, {"other": Judged(Verdict("training", "inside"), {"peers": 0.0})}
    for rank in here:
        verdict = Verdict("training", "inside", {}, cause if rank in slow else None)
        sessions[f"r{rank}"], judged[f"r{rank}"] = rank_of(rank, ranks), Judged(verdict, {"peers": 1.0 - works[rank]})
    process = ProcessStatus(process=f"r{asked}", state="training", limited_by="waiting_for_peers", world_size=ranks)

    text = waiting_for_peers(Subject.of(process, Node(sessions=sessions, judged=judged))) or ""
    known = [works[rank] for rank in here]
    usual = min(known) if len(known) == 2 else statistics.median(known)
    late = {rank: works[rank] / usual for rank in here if works[rank] > 1.25 * max(0.4, usual)}
    if not late:
        whole = len(here) == ranks
        assert text.startswith(f"none of its {ranks} ranks is slow" if whole else f"find the slow one of its {ranks} r")
        return
    slowest = max(late, key=late.__getitem__)
    assert text.startswith(f"make rank {slowest}{' and 1 other' if late.keys() - {slowest} else ''} faster: it works ")
    times, as_ = f"{late[slowest]:.1f}".rstrip("0").rstrip("."), "other" if ranks == 2 else "median"
    assert f" {times} times as long as the {as_} rank" in text
    assert ("waits for its data loader" in text) == (cause == "data_loading")
    assert text.endswith(f": gpugauge doctor {100 + slowest}")


def rank_of(rank: int, ranks: int, uid: int = 0) -> Session:
    facts = {"rank": str(rank), "world_size": str(ranks)}
    return Session(wire.Hello(str(rank), 0, facts=facts), 100 + rank, uid, wire.Snap(str(rank), 1))


@seeds(SEEDS)
def test_memory_in_blocks_that_no_tensor_has_is_named_from_15_percent_on(seed: int) -> None:
    dice = random.Random(seed)
    shares = [dice.choice((None, 0.0, 0.14, 0.15, 0.2, 0.4)) for _ in range(dice.randint(1, 3))]
    allocator, configured = (
        dice.choice(("native", "native", "cudaMallocAsync")),
        dice.choice(("", "", "Expandable_Segments: True")),
    )
    memory = Memory({f"GPU-{index}": OnDevice(fragmentation=share) for index, share in enumerate(shares)})
    uses = session(allocator=allocator, alloc_conf=configured)

    found = advice_of(subject(limited_by="memory_pressure", sessions=uses, memory=memory))

    most = max(share or 0.0 for share in shares)
    named = [f"{most:.0%}"] * (most >= 0.15 and allocator == "native" and not configured)
    assert re.findall(r"(\d+%) of the reserved", " ".join(str(row.change) for row in found)) == named
