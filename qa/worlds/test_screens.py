"""Drawn nodes in `gpugauge top` on terminals of any width, read without the code that wrote it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.drawn import seeds

from gpugauge.status.model import Status, decoded
from gpugauge.terminal.rows import processes
from gpugauge.terminal.screen import SORTS, chosen, gpu_details, gpu_lines, process_details, process_lines
from qa.worlds.nodes import CROWD, GIB, NOW, Node, Program, columns, printed, world

# Some of one GPU and no process, one with 64 GPUs and 512 processes.
SEEDS = [*range(12), CROWD]
CELL = re.compile(r" {2,}")


@functools.cache
def of_world(seed: int) -> tuple[Node, Status]:
    drawn, facts = world(seed)
    return drawn, decoded(Status, facts)


@pytest.mark.parametrize("width", [60, 80, 120, 200, 300])
@seeds(SEEDS)
def test_lines_of_top(seed: int, width: int) -> None:
    drawn, status = of_world(seed)
    _, gpus = gpu_lines(status, width)
    shown = chosen(status, "lost", False, "")
    heading, lines = process_lines(shown, NOW, width)

    for _, line, _ in (*gpus, *lines):
        assert columns(line) <= width
        assert line.isprintable()
    parts = {gpu.uuid: [uuid for uuid, _, _ in gpu.mig] if gpu.up else [] for gpu in drawn.gpus}
    assert [key for key, _, _ in gpus] == [key for uuid, mig in parts.items() for key in (uuid, *mig)]
    assert {key for key, _, _ in lines} == {program.process for program in drawn.programs}
    by_key = {program.process: program for program in drawn.programs}
    titles = CELL.split(heading.strip())
    for key, line, _ in lines:
        program = by_key[key]
        fields = dict(zip(titles, CELL.split(line.strip()), strict=False))  # the last ones may hold blanks
        load = "-" if program.load is None or not program.gpus else f"{100 * program.load:.0f} %"
        lost = "-" if program.ratio is None else f"{100 * program.ratio:.0f} %"
        assert (fields["PID"], fields["LOAD"], fields["LOST"]) == (str(program.pid), load, lost)
        if "GiB" in fields:
            assert fields["GiB"] == (f"{program.memory * len(program.gpus) / GIB:.1f}" if program.gpus else "-")


@seeds(SEEDS)
def test_details_name_the_trouble(seed: int) -> None:
    drawn, status = of_world(seed)
    programs = {program.process: program for program in drawn.programs}
    for process in processes(status):
        lines = process_details(process, NOW)
        assert all(line.isprintable() for line in lines)
        program = programs[process.facts.process]
        assert lines[0] == f"{printed(program.name)}, pid {program.pid}"
        assert any(line.startswith("→ ") for line in lines) >= program.in_trouble
    for gpu, shown in zip(drawn.gpus, status.gpus, strict=True):
        lines = gpu_details(shown)
        assert all(line.isprintable() for line in lines)
        assert all(any(f"MIG {profile}: " in line for line in lines) for _, profile, _ in gpu.mig if gpu.up)


@pytest.mark.parametrize("sort", SORTS)
@seeds(SEEDS)
def test_order_of_processes(seed: int, sort: str) -> None:
    drawn, status = of_world(seed)
    programs = {program.process: program for program in drawn.programs}
    number = {gpu.uuid: gpu.index for gpu in drawn.gpus}
    values_by_sort: dict[str, Callable[[Program], Any]] = {
        "lost": lambda p: p.ratio,
        "load": lambda p: p.load if p.gpus else None,
        "memory": lambda p: p.memory * len(p.gpus) if p.gpus else None,
        "age": lambda p: None,
        "gpu": lambda p: -min(number[uuid] for uuid in p.gpus) if p.gpus else None,
        "pid": lambda p: p.pid,
        "program": lambda p: p.name,
    }
    truth = values_by_sort[sort]
    values = [truth(programs[p.facts.process]) for p in chosen(status, sort, False, "")]
    known = [value for value in values if value is not None]

    assert known == sorted(known, reverse=sort != "program")
    assert values == known + [None] * (len(values) - len(known))
    assert [truth(programs[p.facts.process]) for p in chosen(status, sort, True, "")][: len(known)] == known[::-1]


@seeds(SEEDS)
def test_filter_finds_by_pid_state_and_gpu(seed: int) -> None:
    drawn, status = of_world(seed)

    for program in drawn.programs[:20]:
        assert program.process in {p.facts.process for p in chosen(status, "lost", False, str(program.pid))}
        named = {p.facts.process for p in chosen(status, "lost", False, program.name.upper())}
        assert program.process in named
    stalled = {p.process for p in drawn.programs if p.condition == "stalled"}
    assert {p.facts.process for p in chosen(status, "pid", False, "stalled")} >= stalled
    assert chosen(status, "pid", False, "no such program") == []


def test_wide_screens_have_all_columns() -> None:
    _, status = of_world(0)
    gpus, processes_of_node = gpu_lines(status, 400)[0], process_lines(chosen(status, "lost", False, ""), NOW, 400)[0]

    assert CELL.split(gpus.strip()) == [
        *("GPU", "STATE", "LOAD", "10 MINUTES", "5 MIN", "MEMORY GiB", "POWER W", "TEMP", "NAME OR PROBLEM"),
    ]
    assert CELL.split(processes_of_node.strip()) == [
        *("PID", "GPU", "LOAD", "GiB", "AGE", "STATE", "LOST", "PROGRAM", "CAUSE", "OWNER"),
    ]
