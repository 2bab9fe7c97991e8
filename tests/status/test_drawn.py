"""Drawn nodes: the text of `gpugauge status`, read without the code that wrote it, says what is true of the node."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest

from gpugauge.status.node import status
from gpugauge.status.processes import Facts
from gpugauge.terminal.table import table
from tests.status.drawnnode import GIB, NOW, Gpu, Node, Program, draw

SEEDS = range(60)
WIDTHS = (80, 120, 200)


def columns(line: str) -> int:
    """Return the columns that a line takes on a terminal, by the tables of Unicode."""
    wide = sum(unicodedata.east_asian_width(c) in {"W", "F"} for c in line)
    return len(line) + wide - sum(unicodedata.combining(c) > 0 for c in line)


def squeezed(text: str) -> str:
    """Return a text without blanks and line ends: a long name may be divided by them."""
    return re.sub(r"\s+", "", text)


def facts_of(node: Node) -> Facts:
    facts: Facts = json.loads(json.dumps(status(node.snapshot(), node.history()), allow_nan=False))
    return facts | {"host": "node-7"}


def on(node: Node, uuid: str) -> list[Program]:
    return [program for program in node.programs if uuid in program.gpus]


def wasting(program: Program) -> bool:
    return program.condition in {"stalled", "idle"} or bool(program.ratio and program.ratio >= 0.5)


def useful(program: Program) -> bool:
    return program.condition in {"well", "limited"} and not wasting(program)


def counted(answer: str, word: str) -> tuple[int, int] | None:
    """Return n and m of a clause `n of m GPUs WORD` of the answer."""
    found = re.search(rf"(?:^|; |: )(\d+) of (\d+) GPUs? {word}\b", answer)
    return (int(found[1]), int(found[2])) if found else None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_is_the_drawn_truth(seed: int) -> None:
    node = draw(seed)
    facts = facts_of(node)
    answer, total = facts["answer"], len(node.gpus)
    up = [gpu for gpu in node.gpus if gpu.up]
    bad = {g.uuid for g in up if any(map(wasting, on(node, g.uuid))) and not any(map(useful, on(node, g.uuid)))}
    slow = {g.uuid for g in up if any(p.cause and useful(p) for p in on(node, g.uuid))} - bad
    faulty = {g.uuid for g in node.gpus if g.up and g.faulty}
    lowered = {g.uuid for g in up if g.slowed not in {None, "gpu_idle", "sw_power_cap"}}
    on_cpu = [p for p in node.programs if p.condition == "on_cpu" and p.cause]

    for word, truth in (
        ("down", {g.uuid for g in node.gpus if not g.up}),
        ("wasted", bad),
        ("slowed", slow),
        ("with errors", faulty),
        ("with lowered clocks", lowered),
    ):
        assert counted(answer, word) == ((len(truth), total) if truth else None), (word, answer)
    assert ("on the CPU although" in answer) == bool(on_cpu)
    if bad:
        named = [p.name[:39] for p in node.programs if bad.intersection(p.gpus)]
        assert answer.partition(" wasted: ")[2].startswith(tuple(named))
    failing = any(wasting(p) or p.condition == "limited" for p in node.programs)
    well = len(up) == total and not (faulty or lowered or on_cpu or failing)
    assert (" well" in answer, facts["problems"] == []) == (well, well)
    if well:
        used = sum(any(p.condition != "display" for p in on(node, gpu.uuid)) for gpu in node.gpus)
        words = f": {used} in use, {total - used} free" if total > 1 else " in use" if used else " free"
        unknown = sum(p.condition == "unhooked" for p in node.programs)
        words += f"; {unknown} process{'es' if unknown > 1 else ''} without the hook not judged" if unknown else ""
        assert answer.endswith(words)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_program_with_trouble_is_named_with_its_share(seed: int) -> None:
    node = draw(seed)
    problems = {label: problem for problem in facts_of(node)["problems"] for label in problem["processes"]}

    for program in node.programs:
        trouble = wasting(program) or program.condition == "limited" or bool(program.cause)
        assert (program.process in problems) == trouble, program
        if trouble:
            problem = problems[program.process]
            assert (problem["subject"], set(problem["gpus"]) >= set(program.gpus)) == (program.name, True)
            assert program.ratio is None or f"{100 * program.ratio:.0f} % of its GPU time" in problem["detail"]
            assert problem["advice"]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_state_of_each_gpu_is_the_drawn_truth(seed: int) -> None:
    node = draw(seed)

    for gpu, shown in zip(node.gpus, facts_of(node)["gpus"], strict=True):
        here = on(node, gpu.uuid)
        lowered = gpu.slowed not in {None, "gpu_idle", "sw_power_cap"}
        wasted = any(map(wasting, here)) and not any(map(useful, here))
        grave = not gpu.up or gpu.reset or gpu.remapping_failed or wasted
        troubled = gpu.faulty or lowered or any(p.cause and useful(p) for p in here)
        used = any(p.condition != "display" for p in here)
        level = "bad" if grave else "poor" if troubled else "good" if any(map(useful, here)) else "none"
        states = (
            (not gpu.up, "down"),
            (gpu.faulty, "errors"),
            (wasted, "wasted"),
            (any(p.cause and useful(p) for p in here), "slowed"),
            (lowered, "clocks lowered"),
            (used, "in use"),
        )
        assert (shown["level"], shown["state_words"]) == (level, next((w for true, w in states if true), "free"))
        assert (shown["summary"] is None) == (shown["state_words"] == "free" and not here)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_totals_are_those_of_the_gpus_that_answer(seed: int) -> None:
    node = draw(seed)
    up = [gpu for gpu in node.gpus if gpu.up]
    whole = [gpu.load for gpu in up if not gpu.mig]
    parts = [load for gpu in up for _, _, load in gpu.mig if load is not None]
    totals = facts_of(node)["totals"]

    assert (totals["gpus"], totals["up"], totals["load_gpus"]) == (len(node.gpus), len(up), len(whole))
    assert totals["load"] == (pytest.approx(sum(whole) / len(whole)) if whole else None)
    assert totals["mig_load"] == (pytest.approx(sum(parts) / len(parts)) if parts else None)
    assert totals["mig_devices"] == sum(len(gpu.mig) for gpu in up)
    assert totals["power_watts"] == (pytest.approx(sum(gpu.power for gpu in up)) if up else None)


@pytest.mark.parametrize("width", [60, 64, *WIDTHS])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_line_is_wider_than_the_terminal(seed: int, width: int) -> None:
    facts = facts_of(draw(seed))
    text = table(facts, False, NOW, width)

    assert [line for line in text.splitlines() if columns(line) > width] == []
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert re.sub(r"\x1b\[\d+m", "", table(facts, True, NOW, width)) == text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_gpu_problem_and_process_stands_in_the_text(seed: int, width: int) -> None:
    node = draw(seed)
    facts = facts_of(node)
    text = table(facts, False, NOW, width)
    flat, lines = squeezed(text), text.splitlines()

    assert flat.startswith(squeezed("node-7: " + facts["answer"].replace("\x1b", "?")))
    for problem in facts["problems"]:
        shown = f"{problem['subject']}{'' if problem['processes'] else ':'}{problem['text']}"
        printable = "".join(c if c.isprintable() else "?" for c in shown)
        assert squeezed(printable) in flat
    heading = next(i for i, line in enumerate(lines) if line.startswith("GPU  NAME"))
    for gpu in node.gpus:
        (row,) = [x for x in lines[heading:] if re.match(rf" *{gpu.index} ", x) and not re.match(r" {5}", x)]
        for _, profile, load in gpu.mig if gpu.up else ():
            ratio = "-" if load is None else f"{100 * load:.0f} %"
            assert any(re.match(rf" {{5}}MIG {re.escape(profile)} .* load +{ratio}  ", line) for line in lines)
        if not gpu.up:
            assert gpu.uuid in text
            continue
        fields = re.split(r" {2,}", row.strip())
        busy = "-" if gpu.mig else f"{100 * gpu.load:.0f} %"
        assert [fields[0], *fields[2:]] == [str(gpu.index), busy, "-", "79.0/80.0", f"{gpu.power:.0f}/700", "64 °C"]
        assert len(fields[1]) >= 5 or fields[1] == gpu.name.removeprefix("NVIDIA ")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_values_of_a_process_run_together(seed: int, width: int) -> None:
    node = draw(seed)
    lines = table(facts_of(node), False, NOW, width).splitlines()
    words = {"well": "training", "limited": "training", "stalled": "stalled", "idle": "idle"}
    words |= {"on_cpu": "on the CPU", "unhooked": "no hook", "display": "display"}

    for program in node.programs:
        rows = [line for line in lines if re.match(rf" {{5,}}{program.pid}  ", line)]
        assert len(rows) == (len(program.gpus) or 1)
        load = "-" if program.load is None or not program.gpus else f"{100 * program.load:.0f} %"
        memory = f"{program.memory / GIB:.1f}" if program.gpus else "-"
        expected = [str(program.pid), load, memory, "-", words[program.condition]]
        for row in rows:
            *fields, name = re.split(r" {2,}", row.strip(), maxsplit=5)
            assert fields == expected
            shown = "".join(c if c.isprintable() else "?" for c in program.name)
            assert name == shown or (name.endswith("…") and shown.startswith(name[:-1]) and columns(name) >= 11)


def test_only_programs_on_wasted_gpus_are_named_as_their_cause() -> None:
    gpus = [Gpu(f"GPU-{index}", index, "H100") for index in range(2)]
    stalled = [Program(f"s{n}", 10 + n, f"beside{n}.py", "stalled", ["GPU-0"]) for n in range(3)]
    good = Program("g", 20, "good.py", "well", ["GPU-0"])
    culprit = Program("c", 21, "starved.py", "limited", ["GPU-1"], "data_loading", 0.7)

    answer = facts_of(Node(gpus, [*stalled, good, culprit]))["answer"]

    assert answer == "1 of 2 GPUs wasted: starved.py waits for its data loader (70 %)"
