"""Drawn nodes on terminals of any width: the text of `status` and `top`, read without the code that wrote it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from gpugauge.cli.status import exit_status
from gpugauge.status.node import status
from gpugauge.status.processes import Entry
from gpugauge.terminal.screen import SORTS, chosen, gpu_details, gpu_lines, process_details, process_lines, processes
from gpugauge.terminal.table import table
from tests.status.drawnnode import GIB, NOW, Node, Program, draw, draw_crowded

# Some of one GPU and no process, some with 64 GPUs and 512 processes.
NODES = {
    **{f"seed {seed}": draw(seed) for seed in range(12)},
    **{f"full {seed}": draw_crowded(seed) for seed in (1,)},
}
WIDTHS = (20, 24, 41, 60, 80, 120, 200, 300)
CELL = re.compile(r" {2,}")


def columns(line: str) -> int:
    """Return the columns that a line takes on a terminal, by the tables of Unicode."""
    wide = sum(unicodedata.east_asian_width(c) in {"W", "F"} for c in line)
    return len(line) + wide - sum(unicodedata.combining(c) > 0 for c in line)


@pytest.fixture(scope="module", params=NODES)
def node(request: pytest.FixtureRequest) -> tuple[Node, Entry]:
    drawn = NODES[request.param]
    return drawn, json.loads(json.dumps(status(drawn.snapshot(), drawn.history()))) | {"host": "node-7"}


def well(node: Node) -> bool:
    """Return whether nothing that was drawn needs a person."""
    lowered = any(g.slowed not in {None, "gpu_idle", "sw_power_cap"} for g in node.gpus)
    broken = any(not gpu.up or gpu.faulty for gpu in node.gpus)
    return not (lowered or broken or node.unexplained or any(p.in_trouble for p in node.programs))


def printed(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)


def test_exit_status_is_the_drawn_truth(node: tuple[Node, Entry]) -> None:
    drawn, facts = node

    assert exit_status(facts) == (0 if well(drawn) else 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_status_fits_and_shows_problems_first(node: tuple[Node, Entry], width: int) -> None:
    drawn, facts = node
    text = table(facts, False, NOW, width)
    lines = text.splitlines()
    flat = re.sub(r"\s", "", text)
    named = [f"{p['subject']}{'' if p['processes'] else ':'}{p['text']}" for p in facts["problems"]]
    problems = [re.sub(r"\s", "", printed(problem)) for problem in named]

    assert [line for line in lines if columns(line) > width] == []
    assert set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert flat.startswith(re.sub(r"\s", "", printed("node-7:" + facts["answer"])))
    places = [flat.index(problem) for problem in problems]
    assert all(place < flat.index("GPUNAME") for place in places)
    # A pid is never cut, and stands apart from what follows it.
    words = text.split()
    assert all(words.count(str(program.pid)) >= (len(program.gpus) or 1) for program in drawn.programs)


@pytest.mark.parametrize("width", [width for width in WIDTHS if width >= 41])
def test_no_line_ends_between_a_number_and_its_unit(node: tuple[Node, Entry], width: int) -> None:
    text = table(node[1], False, NOW, width)

    assert not re.findall(r"\d\n +(?:%|ms|s|min|h|GiB|W|°C)(?!\w).*", text)


@pytest.mark.parametrize("height", [5, 24, 40, 10_000])
def test_the_answer_is_at_both_ends_of_a_text_that_is_higher_than_the_terminal(
    node: tuple[Node, Entry], height: int
) -> None:
    text = table(node[1], False, NOW, 200)
    heading = text.partition("\n\n")[0] + "\n"

    assert table(node[1], False, NOW, 200, height) == text + (f"\n{heading}" if text.count("\n") >= height else "")


@pytest.mark.parametrize("width", [width for width in WIDTHS if width >= 60])
def test_lines_of_top(node: tuple[Node, Entry], width: int) -> None:
    drawn, facts = node
    _, gpus = gpu_lines(facts, width)
    shown = chosen(facts, "lost", False, "")
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


def test_details_name_the_trouble(node: tuple[Node, Entry]) -> None:
    drawn, facts = node
    programs = {program.process: program for program in drawn.programs}
    for process in processes(facts):
        lines = process_details(process, NOW)
        assert all(line.isprintable() for line in lines)
        program = programs[process.facts["process"]]
        assert lines[0] == f"{printed(program.name)}, pid {program.pid}"
        assert any(line.startswith("→ ") for line in lines) >= program.in_trouble
    for gpu, shown in zip(drawn.gpus, facts["gpus"], strict=True):
        lines = gpu_details(shown)
        assert all(line.isprintable() for line in lines)
        assert all(any(f"MIG {profile}: " in line for line in lines) for _, profile, _ in gpu.mig if gpu.up)


@pytest.mark.parametrize("sort", SORTS)
def test_order_of_processes(node: tuple[Node, Entry], sort: str) -> None:
    drawn, facts = node
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
    values = [truth(programs[p.facts["process"]]) for p in chosen(facts, sort, False, "")]
    known = [value for value in values if value is not None]

    assert known == sorted(known, reverse=sort != "program")
    assert values == known + [None] * (len(values) - len(known))
    assert [truth(programs[p.facts["process"]]) for p in chosen(facts, sort, True, "")][: len(known)] == known[::-1]


def test_filter_finds_by_pid_state_and_gpu(node: tuple[Node, Entry]) -> None:
    drawn, facts = node

    for program in drawn.programs[:20]:
        assert program.process in {p.facts["process"] for p in chosen(facts, "lost", False, str(program.pid))}
        named = {p.facts["process"] for p in chosen(facts, "lost", False, program.name.upper())}
        assert program.process in named
    stalled = {p.process for p in drawn.programs if p.condition == "stalled"}
    assert {p.facts["process"] for p in chosen(facts, "pid", False, "stalled")} >= stalled
    assert chosen(facts, "pid", False, "no such program") == []
