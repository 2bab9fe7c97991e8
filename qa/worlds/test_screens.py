"""Drawn nodes in `gpugauge top` on terminals of any width, read without the code that wrote it."""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.cases import case
from tests.drawn import draws, seeds
from tests.terminal.test_top import screen, watched

from gpugauge.cli.status import exit_status
from gpugauge.doctor.answer import StatusReply
from gpugauge.doctor.report import below
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.faults.repair import Site, needs
from gpugauge.faults.table import FAULTS
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.status.model import Advice, Status, as_json, decoded
from gpugauge.status.words import percent
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.reply import Feed
from gpugauge.terminal.rows import processes, to_do
from gpugauge.terminal.screen import SORTS, chosen, gpu_details, gpu_lines, of_users, process_lines, sparkline
from gpugauge.terminal.table import table
from qa.worlds.looks import looks
from qa.worlds.nodes import CROWD, GIB, NOW, Gpu, Node, Program, columns, facts_of, printed, world
from qa.worlds.test_nodes import erring, lowered, state

# Some of one GPU and no process, one with 64 GPUs and 512 processes.
SEEDS = [*range(12), CROWD]
CELL = re.compile(r" {2,}")


@functools.cache
def of_world(seed: int) -> tuple[Node, Status]:
    drawn, facts = world(seed)
    return drawn, decoded(Status, facts)


def lost_of(program: Program) -> float | None:
    """Return the share of its GPU time that a program loses: without a GPU there is none."""
    return None if program.condition == "on_cpu" else program.ratio


def loses(program: Program) -> float | None:
    """Return what the order goes by: all of the time of a program that does no work for a GPU, its waits on the CPU."""
    if program.condition in {"stalled", "idle"} or (program.condition == "on_cpu" and program.cause):
        return 1.0
    return program.waits if program.condition == "on_cpu" and program.in_trouble else lost_of(program)


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
    faulty = {gpu.uuid: not gpu.up or erring(gpu) or lowered(gpu) or gpu.xid in {48, 79} for gpu in drawn.gpus}
    now = {gpu.uuid: faulty[gpu.uuid] and state(drawn, gpu)[0] == "bad" for gpu in drawn.gpus}
    ordered = sorted(drawn.gpus, key=lambda gpu: (not faulty[gpu.uuid], not now[gpu.uuid]))
    parts = {gpu.uuid: [uuid for uuid, _, _ in gpu.mig] if gpu.up else [] for gpu in ordered}
    assert [key for key, _, _ in gpus] == [key for uuid, mig in parts.items() for key in (uuid, *mig)]
    assert {key for key, _, _ in lines} == {program.process for program in drawn.programs}
    by_key = {program.process: program for program in drawn.programs}
    titles = CELL.split(heading.strip())
    for key, line, _ in lines:
        program = by_key[key]
        fields = dict(zip(titles, CELL.split(line.strip()), strict=False))  # the last ones may hold blanks
        load = "-" if program.load is None or not program.gpus else f"{100 * program.load:.0f} %"
        little = "<5 %" if program.condition == "well" else "-"
        lost = little if (ratio := lost_of(program)) is None else f"{100 * ratio:.0f} %"
        assert (fields["PID"], fields["BUSY 5m"], fields["LOST"]) == (str(program.pid), load, lost)
        if "GiB" in fields:
            assert fields["GiB"] == (f"{program.memory * len(program.gpus) / GIB:.1f}" if program.gpus else "-")


@seeds(SEEDS)
def test_details_of_gpus(seed: int) -> None:
    drawn, status = of_world(seed)
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
        "lost": loses,
        "busy": lambda p: p.load if p.gpus else None,
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


def joined(text: object) -> str:
    """Return a text as a terminal shows it, without the blanks at which lines may end."""
    return "".join(printed(str(text or "")).split())


@seeds(draws(1, 40))
def test_the_whole_screen(seed: int) -> None:
    """The answer, the most severe problem with what to do, and GPUs on one line each, on terminals of drawn sizes."""
    _, facts = world(seed)
    dice, worst = random.Random(seed), next(iter(facts["problems"]), {"text": "", "advice": ""})
    size = dice.choice([(80, 24), (120, 40), (200, 50), (dice.randint(70, 250), dice.randint(24, 80))])

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        for keys in ((), ("d",), ("tab", "down"), ("question_mark",), ("escape", "slash", "x")):
            await pilot.press(*keys)
            await pilot.pause()
            lines = screen(app)
            assert len(lines) == size[1]
            assert all(columns(line) <= size[0] and line.isprintable() for line in lines)
            head = joined(" ".join(lines[:12]))
            if keys != ("question_mark",):
                assert joined(f"node-7: {facts['answer']}")[:50] in head
                assert joined(worst["text"])[:30] in head
                # Open details take the lines of the advice.
                assert keys or joined(worst["advice"]) in joined(" ".join(lines))
                if "x" in keys:  # the filter leaves out the GPUs, too
                    continue
                first, last = (next(i for i, line in enumerate(lines) if words in line) for words in ("BUSY", "PID"))
                assert all(re.match(r" +(\d+|\?|MIG) ", line) for line in lines[first + 1 : last - 1])

    watched([facts], steps, size)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((200, 60), marks=pytest.mark.everything)])
def test_the_most_severe_problem_is_above_everything_else(size: tuple[int, int]) -> None:
    broken = [Gpu(f"GPU-{n}", n, "NVIDIA H100", reset=n == 1, uncorrected=7 * (n > 6), load=0.1) for n in range(8)]
    unhooked = [Program(f"u{n}", 200 + n, "train.py", "unhooked", [f"GPU-{n}"]) for n in range(8)]

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        reset = next(i for i, line in enumerate(lines) if line.startswith(" GPU 1: the driver requires a reset"))
        assert reset <= 3
        assert size == (80, 24) or "used by train.py (pid 201)" in lines[reset + 1]
        assert not any("under the hook" in line for line in lines[: reset + 2])
        heading = next(i for i, line in enumerate(lines) if "GPU  STATE" in line)
        assert reset < heading < next(i for i, line in enumerate(lines) if "PID  GPU" in line)
        assert lines[heading + 1].split()[0] == "1"
        assert "quit" in lines[-1]
        assert len(lines) == size[1]
        if size == (80, 24):
            assert not any("What limits it" in line for line in lines)
            await pilot.press("d")
            await pilot.pause()
        assert sum("train.py, pid 20" in line or "What limits it" in line for line in screen(app)) == 2

    watched([facts_of(Node(broken, unhooked))], steps, size)


def test_wide_screens_have_all_columns() -> None:
    _, status = of_world(0)
    gpus, processes_of_node = gpu_lines(status, 400)[0], process_lines(chosen(status, "lost", False, ""), NOW, 400)[0]

    assert CELL.split(gpus.strip()) == [
        *("GPU", "STATE", "BUSY", "BUSY 10m", "BUSY 5m", "MEMORY GiB", "POWER W", "TEMP", "NAME OR PROBLEM", "OWNER"),
    ]
    assert CELL.split(processes_of_node.strip()) == [
        *("PID", "GPU", "BUSY 5m", "GiB", "AGE", "LOST", "PROGRAM", "STATE OR CAUSE", "OWNER"),
    ]


@pytest.mark.parametrize(
    ("scenario", "owners", "rows"),
    [
        ("node", (*("pod research/pr",) * 4, "Slurm job 88123", "user 20013", "container 0f1e", " -"), 3),
        ("bottlenecks", tuple(f"Slurm job 50{n}" for n in range(1, 8)), 2),  # with eight further problems
    ],
)
def test_a_small_terminal_shows_each_gpu_and_whose_it_is(
    scenario: str, owners: tuple[str, ...], rows: int, tmp_path: Path
) -> None:
    *_, status = looks(load_scenario(scenario), tmp_path / "node", 100, 101, 1)

    pids = [[str(process.facts.pid)] for process in processes(status)]

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        heading = next(i for i, line in enumerate(lines) if line.split()[:3] == ["GPU", "STATE", "BUSY"])
        gpus = lines[heading + 1 : heading + 9]
        assert sorted(line.split()[0] for line in gpus) == list("01234567")
        assert lines[heading].split()[-1] == "OWNER"
        by_index = {line.split()[0]: line for line in gpus}
        assert all(owner in by_index[str(index)] for index, owner in enumerate(owners))
        below = lines[heading + 9 :]
        assert sum(line.split()[:1] in pids for line in below) >= rows
        assert any(owner in line for line in below for owner in owners)
        for opened in (1, 0, 1):
            await pilot.press("question_mark")
            await pilot.pause()
            assert sum("sort by the next of" in line for line in screen(app)) == opened

    watched([as_json(status)], steps, (80, 24))


def test_a_small_terminal_says_how_many_problems_it_hides_and_lists_them(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("bottlenecks"), tmp_path / "node", 100, 101, 1)
    first, *others = [problem for problem in status.problems if not problem.steps]

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        assert joined(first.advice) in joined("".join(lines))
        found = re.compile(r" (\d+) more (problem|fault)s?.*: p lists all")
        count = next(filter(None, map(found.match, lines)))
        listed = sum(line.startswith(f" {problem.subject}") for line in lines for problem in others)
        assert int(count[1]) + listed == len(others)
        await pilot.press("p")
        seen = joined("".join(screen(app)))
        for _ in range(9):
            await pilot.press("pagedown")
            await pilot.pause()
            seen += joined("".join(screen(app)))
        assert all(joined(problem.text) in seen for problem in others)
        await pilot.press("p")
        await pilot.pause()
        assert [line[:40] for line in screen(app)] == [line[:40] for line in lines]

    watched([as_json(status)], steps, (80, 24))


@pytest.mark.parametrize("scenario", ["bottlenecks", "node", "bench-64", "failing-card", "a100-mig"])
def test_status_in_short_has_a_line_for_each_gpu_and_process(scenario: str, tmp_path: Path) -> None:
    *_, status = looks(load_scenario(scenario), tmp_path / "node", 100, 101, 1)
    for width in (80, 120):
        text = table(status, False, NOW, width, verbose=False)
        lines = text.splitlines()
        assert len(lines) <= 64
        assert all(columns(line) <= width for line in lines)
        words = joined(" ".join(lines))
        assert joined(status.answer) in words
        assert all(joined(line) in words for p in status.problems for line in to_do(replace(p, gain_words=None)))
        assert all(joined(problem.subject) in words for problem in status.problems)
        # The gain is that of the doctor, but for what limits the steps next, and the loss that of the table below.
        of_programs = [problem for problem in status.problems if problem.ratio is not None]
        gains = [(p.gain_words or "").partition(",")[0].replace("as many", "the") for p in of_programs]
        assert all(joined(re.sub("^steps |about ", "", gain)) in words for gain in gains)
        lost = {p.facts.process: p.facts.lost_ratio for p in processes(status)}
        for problem in (problem for problem in of_programs if len(problem.processes) == 1):
            share = percent(lost[problem.processes[0]])
            assert joined(f"{share} lost") in words or joined(f"to this, {share} in all") in words, problem
        rows = [line.split()[0] for line in lines if line.strip()]
        assert {str(gpu.index) for gpu in status.gpus} <= {*rows}
        assert {str(process.facts.pid) for process in chosen(status, "lost", False, "")} <= {*rows}


@pytest.mark.parametrize("scenario", ["bottlenecks", "bench-64"])
def test_each_process_has_a_step_bar_or_the_reason_why_not_and_numbered_steps(scenario: str, tmp_path: Path) -> None:
    *_, status = looks(load_scenario(scenario), tmp_path / "node", 100, 101, 1)
    for process in processes(status):
        shown = "\n".join(process_screen(process, NOW, 120, colour=False))
        assert "Where a step goes" in shown, shown
        below = shown.partition("Where a step goes\n")[2]
        assert below.strip(), shown
        steps = [step for change in process.facts.changes for step in change.steps]
        numbered = [line for line in shown.splitlines() if re.match(r"  \d+\. ", line)]
        assert len(numbered) <= len(steps)
        assert [line.split(". ")[0].strip() for line in numbered] == [f"{n}" for n in range(1, len(numbered) + 1)]
        assert not any("; also " in step or "; then " in step for step in steps)


def test_status_of_one_user(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("node"), tmp_path / "node", 100, 101, 1)
    mine = of_users(status, ["20012", "ann"])
    assert [(gpu.index, [p.command for p in gpu.processes]) for gpu in mine.gpus] == [(4, ["finetune.py"])]
    assert [problem.subject for problem in mine.problems] == ["finetune.py"]
    assert mine.answer.startswith("Of 20012: 1 of 1 GPU wasted: finetune.py waits for its data loader")
    assert exit_status(mine) == 3
    none = of_users(status, ["20099"])
    assert (none.gpus, none.problems, exit_status(none)) == ((), (), 0)
    assert none.answer == "Of 20099: no process is on a GPU or has torch"


def test_the_history_has_the_length_of_its_heading() -> None:
    assert sparkline([(150.0 - 5 * n, 0.5) for n in range(31)]) == " " * 8 + "▅" * 4
    assert sparkline([(600.0, 0.9), (595.0, 0.9), (0.0, 0.1)]) == "█" + " " * 10 + "▁"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize("scenario", ["failing-card", "bad-links"])
def test_the_steps_of_a_repair_are_on_the_first_screen(size: tuple[int, int], scenario: str, tmp_path: Path) -> None:
    *_, status = looks(load_scenario(scenario), tmp_path / "node", 100, 101, 1)
    place = Site(stop="systemctl stop gpugauge.socket gpugauge", check="gpugauge status --fail-on health", node="n7")
    places = (place._replace(managers=frozenset({"slurm"})), place)
    repair = next(problem for problem in status.problems if problem.steps)

    for place in places:
        device = Device("GPU-1", True, "ok", DeviceReading(index=1), {})
        plan = tuple(place.plan([*needs(device, ["{reset}"]), *needs(device, ["{reboot}"], FAULTS["GpuPcieDegraded"])]))
        shown = [replace(problem, steps=plan) if problem is repair else problem for problem in status.problems]
        assert plan[-1].startswith("GPU 1 (narrow link), when it has load again, expect all lanes: ")
        assert "check" in plan[-2] or "give the node back" in plan[-2]

        async def steps(pilot: Any, app: Any, feed: Feed) -> None:
            lines = screen(app)
            seen, heading = "".join(lines).replace(" ", ""), f" {repair.subject}: {repair.text}"
            assert all(f"{n}.{step}".replace(" ", "") in seen for n, step in enumerate(plan, 1))  # noqa: B023  (called before the loop goes on)
            first = lines.index(heading)
            assert all(any(f"  {n}. " in line for line in lines[first:]) for n in range(1, len(plan) + 1))  # noqa: B023  (called before the loop goes on)
            assert any("PID  GPU" in line for line in lines)
            # Each GPU that is to be repaired has a row, or its state is in the line about all.
            ill = [gpu for gpu in status.gpus if gpu.uuid in repair.gpus]
            rows = [line for line in lines if re.match(r" +\d+  ", line) or re.match(r" GPUs? \d.* \w", line)]
            assert all(any(gpu.state_words in line and str(gpu.index) in line for line in rows) for gpu in ill)
            assert scenario == "failing-card" or any(line.startswith("   → ") for line in lines[:first])

        watched([as_json(replace(status, problems=tuple(shown)))], steps, size)


def test_steps_of_a_repair_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("failing-card"), tmp_path / "node", 100, 101, 1)
    faults = [problem for problem in status.problems if not problem.steps]
    repair = next(problem for problem in status.problems if problem.steps)

    for count in (3, 8, 14, 40):
        plan = replace(repair, steps=tuple(f"step {n}" for n in range(1, count + 1)))

        async def steps(pilot: Any, app: Any, feed: Feed) -> None:
            lines = screen(app)
            hidden = [
                found for line in lines if (found := re.match(r" (\d+) more steps?, 1 more fault: p lists all", line))
            ]
            begun = sum(bool(re.match(r" +\d+\. step", line)) for line in lines)
            assert begun + sum(int(found[1]) for found in hidden) == count  # noqa: B023  (called before the loop goes on)
            assert len(hidden) == (count > 8)  # noqa: B023  (called before the loop goes on)

        watched([as_json(replace(status, problems=(*faults, plan)))], steps, (80, 24))


def test_equal_processes_are_one_line_as_in_status(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("bench-64"), tmp_path / "node", 100, 101, 1)
    shown = chosen(status, "pid", True, "")

    assert [(p.pids, p.where) for p in shown] == [(f"{5001 + 8 * n}-{5008 + 8 * n}", str(n)) for n in range(8)]
    assert [p.pids for p in chosen(status, "pid", True, "5003")] == ["5003"]

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        assert any(line.startswith(" 64 processes, ") for line in lines)
        assert sum("train.py ×8  no hook" in line for line in lines) == 8
        assert any("sums of pids 5001-5008" in line for line in lines)

    watched([as_json(status)], steps, (120, 50))


def test_lines_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("bench-64"), tmp_path / "node", 100, 101, 1)

    async def steps(pilot: Any, app: Any, feed: Feed) -> None:
        lines = screen(app)
        for title, keys in (("GPU  STATE", "Shift+Tab, ↓"), ("PID  GPU", "↓")):
            heading = next(line for line in lines if title in line)
            rows = itertools.takewhile(re.compile(r" +\d+ ").match, lines[lines.index(heading) + 1 :])
            shown = re.search(rf"  (\d) of 8 lines: {re.escape(keys)}$", heading)
            assert shown is not None
            assert int(shown[1]) == len([*rows])
        await pilot.press("d")
        await pilot.pause()
        details = app.query_one("#details")
        more = re.match(r" … (\d+) more lines: PageDown", screen(app)[-2])
        assert more is not None
        assert int(more[1]) == details.max_scroll_y > 0
        for _ in range(9):
            await pilot.press("pagedown")
            await pilot.pause()
        assert details.scroll_target_y == int(more[1])

    watched([as_json(status)], steps, (80, 18))


def test_a_process_seen_from_outside_shares_its_gpu_and_a_server_has_no_cause(tmp_path: Path) -> None:
    *_, status = looks(load_scenario("bench-64"), tmp_path / "node", 100, 101, 1)
    one = processes(status)[0]
    alone = [replace(gpu, processes=(one.facts,)) for gpu in one.gpus]
    server = replace(one, facts=replace(one.facts, role="server"))
    limited = replace(one.facts, limited_by="data_loading", limited_by_words="waits for its data loader", level="bad")

    shares = "  it shares its GPU with 7 other programs without the hook: check that they are meant to share it"
    lines = process_screen(one, NOW, 120, colour=False)
    assert lines[lines.index("What limits it") + 1] == shares
    assert shares not in process_screen(replace(one, gpus=alone), NOW, 120, colour=False)
    assert not {"What limits it", "Where a step goes"} & {*process_screen(server, NOW, 120, colour=False)}
    advised = replace(one.facts, changes=(Advice("data_loading", "loader", "num_workers=1"),))
    for facts, other in ((one.facts, ""), (limited, "other "), (advised, "other ")):
        said = StatusReply(replace(one, facts=facts), replace(status, problems=()))
        last = " ".join(below(case(tmp_path, pid=one.facts.pid), said, [], colour=False)).strip()
        assert last.startswith(f"Its checks found no {other}problem. ")
