"""Equal processes without the hook have one row in `status`: drawn processes, read back from the text."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import replace

import pytest
from tests.drawn import seeds
from tests.status.statusfacts import family

from gpugauge.snapshot import Section
from gpugauge.status.history import History
from gpugauge.status.model import GpuStatus, ProcessStatus, Status
from gpugauge.status.node import build
from gpugauge.terminal.table import table
from qa.worlds.nodes import GIB, NOW
from qa.worlds.pids import pids_of
from qa.worlds.scraped import snapshot_of

ROW = re.compile(
    r" +(?P<pid>\d+) +\S+(?: %)? +(?P<gib>[\d.]+|-) .*no hook +"
    r"(?P<name>\w+\.py)(?: ×(?P<count>\d+))? user (?P<uid>\d+)$"
)


def described(program: str, user: str, on_gpu: bool) -> dict[str, str]:
    labels = {"workload_command": program, "workload_user": user}
    return labels | ({"kind": "compute"} if on_gpu else {"torch_build": "cuda"})


@seeds(range(40))
@pytest.mark.parametrize("on_gpu", [True, False])
def test_each_process_is_in_one_row_and_sums_are_those_of_its_rows(seed: int, on_gpu: bool) -> None:
    dice = random.Random(seed)
    pids = sorted(dice.sample(range(2, 60), dice.randint(1, 30)))
    programs = {pid: (dice.choice(["a.py", "b.py"]), dice.choice(["7", "8"])) for pid in pids}
    memory = {pid: dice.randint(1, 20) for pid in pids}
    kinds: dict[tuple[str, str], set[int]] = defaultdict(set)
    for pid, kind in programs.items():
        kinds[kind].add(pid)
    on = {"process": "", "uuid": "GPU-a"}
    families = [
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("gpu_info", ({"uuid": "GPU-a", "index": "0", "name": "NVIDIA H100"}, 1)),
        family(
            "gpu_process_info" if on_gpu else "gpu_process_host_info",
            *(({"process": f"p{n}", "pid": str(n), **described(*programs[n], on_gpu)}, 1) for n in pids),
        ),
        family(
            "gpu_process_memory_used_bytes",
            *((on | {"process": f"p{n}"}, memory[n] * GIB) for n in pids if on_gpu),
        ),
    ]
    text = table(build(snapshot_of(NOW, 100.0, (Section("all", tuple(families)),), {}), History()), False, NOW, 200)

    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    lines = text.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if row := ROW.match(line):
            listed = re.match(r" +sums of pids (.*)$", after)
            assert bool(listed) == bool(row["count"])
            held = pids_of(listed[1]) if listed else [int(row["pid"])]
            found[row["name"], row["uid"]] += held
            assert row["gib"] == (f"{sum(memory[pid] for pid in held):.1f}" if on_gpu else "-")
            assert int(row["count"] or 1) == len(held)
            assert (len(held) == 1) == (len(kinds[row["name"], row["uid"]]) < 3)
    assert {kind: sorted(listed) for kind, listed in found.items()} == {k: sorted(v) for k, v in kinds.items()}


@pytest.mark.parametrize("widest", ["gpus", "without_gpu", "ended"])
def test_columns_are_as_wide_as_the_widest_process_of_the_node(widest: str) -> None:
    pids = {place: 4194304 if place == widest else 7 for place in ("gpus", "without_gpu", "ended")}
    made = {place: ProcessStatus(process=place, pid=pid, command="x.py") for place, pid in pids.items()}
    gpu = GpuStatus(uuid="GPU-a", index=0, processes=(made["gpus"],))
    status = Status(answer="", timestamp=NOW, version=None, gpus=(gpu,), without_gpu=(made["without_gpu"],))
    text = table(replace(status, ended=(replace(made["ended"], ended=NOW),)), False, NOW, 200)

    ends = [found.end(1) for line in text.splitlines() if (found := re.match(r" +(7|4194304|PID) ", line))]
    assert len(ends) == 6
    assert len(set(ends)) == 1
