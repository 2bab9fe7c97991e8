"""Drawn nodes: the text of `gpugauge status`, read without the code that wrote it, says what is true of the node."""

from __future__ import annotations

import functools
import random
import re
from collections import Counter

import pytest
from tests.drawn import seeds

from gpugauge.cli.status import exit_status
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.table import table
from qa.worlds.nodes import CROWD, GIB, NOW, Gpu, Node, Program, columns, draw, facts_of, printed, world

SEEDS = range(60)
WIDTHS = (80, 120, 200)
ALL_WIDTHS = (20, 24, 41, 60, 64, *WIDTHS, 300)
HARMLESS = {None, "gpu_idle", "sw_power_cap"}  # reasons for lower clocks


def squeezed(text: str) -> str:
    """Return a text without blanks and line ends: a long name may be divided by them."""
    return re.sub(r"\s+", "", text)


def on(node: Node, uuid: str) -> list[Program]:
    return [program for program in node.programs if uuid in program.gpus]


def running(node: Node, uuid: str) -> list[Program]:
    return [program for program in on(node, uuid) if program.condition != "ended"]


def wasting(program: Program) -> bool:
    return program.condition in {"stalled", "idle"} or bool(program.ratio and program.ratio >= 0.5)


def useful(program: Program) -> bool:
    return program.condition in {"well", "limited"} and not wasting(program)


def counted(answer: str, word: str) -> tuple[int, int] | None:
    """Return n and m of a clause `n of m GPUs WORD` of the answer."""
    found = re.search(rf"(?:^|; |: )(\d+) of (\d+) GPUs? {word}\b", answer)
    return (int(found[1]), int(found[2])) if found else None


def lowered(gpu: Gpu) -> bool:
    """Whether the clocks of a GPU are lowered because something is wrong."""
    return gpu.up and gpu.slowed not in HARMLESS


def erring(gpu: Gpu) -> bool:
    """Whether a GPU that answers has an error that needs a person."""
    return gpu.up and (gpu.reset or gpu.remapping_failed or gpu.faulty)


def state(node: Node, gpu: Gpu) -> tuple[str, str]:
    """Return level and state of a GPU: the gravest of all that is true of it."""
    here = on(node, gpu.uuid)
    idle = all(p.condition in {"resting", "idle"} for p in here if p.condition not in {"display", "ended"})
    wasted = any(map(wasting, here)) and not any(map(useful, here))
    states = (
        (not gpu.up, ("bad", "down")),
        (gpu.xid == 79, ("bad", "errors")),
        (gpu.remapping_failed, ("bad", "faulty memory")),
        (gpu.reset, ("bad", "needs recovery")),
        (wasted, ("bad", "wasted")),
        (gpu.uncorrected, ("poor", "memory errors")),
        (gpu.xid == 48, ("poor", "errors")),
        (gpu.remapping_pending, ("poor", "reset pending")),
        (lowered(gpu), ("poor", "clocks lowered")),
        (any(p.cause and useful(p) for p in here), ("poor", "slowed")),
        (gpu in node.unexplained, ("poor", "low load")),
        (
            any(p.condition not in {"display", "ended"} for p in here),
            ("good" if any(map(useful, here)) else "none", "idle" if idle else "in use"),
        ),
    )
    return next((words for true, words in states if true), ("none", "free"))


@seeds(SEEDS)
def test_the_answer_is_the_drawn_truth(seed: int) -> None:
    node, facts = world(seed)
    answer, total = facts["answer"], len(node.gpus)
    states = Counter(state(node, gpu)[1] for gpu in node.gpus)
    # A graver problem hides no fault.
    states["errors"] = sum(erring(gpu) or lowered(gpu) for gpu in node.gpus)
    on_cpu = [p for p in node.programs if p.condition == "on_cpu" and p.cause]

    clauses = {"down": "down", "errors": "with faults", "wasted": "wasted", "slowed": "slowed"}
    clauses["low load"] = "at a low load"
    counts = {words: counted(answer, clause) for words, clause in clauses.items()}
    assert counts == {words: (states[words], total) if states[words] else None for words in clauses}
    assert ("on the CPU although" in answer) == bool(on_cpu)
    if states["wasted"]:
        named = [p.name[:39] for g in node.gpus if state(node, g)[1] == "wasted" for p in on(node, g.uuid)]
        assert answer.partition(" wasted: ")[2].startswith(tuple(named))
    ill = any(g.faulty for g in node.gpus) or any(not g.up or lowered(g) for g in node.gpus)
    quiet = not (ill or node.unexplained or any(p.in_trouble for p in node.programs))
    unknown, early = sum(p.condition == "unhooked" and not p.serves for p in node.programs), node.unjudged
    assert (" well" in answer, facts["problems"] == []) == (quiet and not unknown and not early, quiet)
    assert (f"{early} process{'es' if early > 1 else ''} not judged yet" in answer) == bool(early)
    grave = any(not g.up or g.reset or g.remapping_failed or g.xid == 79 for g in node.gpus)
    grave = grave or bool(on_cpu) or any(map(wasting, node.programs))
    judging = any(p.condition == "judging" for p in node.programs)
    assert facts["level"] == ("bad" if grave else "poor" if not quiet else "none" if unknown or judging else "good")
    if quiet:
        used = sum(any(p.condition not in {"display", "ended"} for p in on(node, gpu.uuid)) for gpu in node.gpus)
        words = f": {used} in use, {total - used} free" if total > 1 else " in use" if used else " free"
        if unknown or early:
            loads = [gpu.load for gpu in node.gpus if not gpu.mig]
            mean = f", {100 * sum(loads) / len(loads):.0f} % busy on average" if loads else ""
            some = f" (known of {len(loads)} GPU{'s' if len(loads) > 1 else ''})" if 0 < len(loads) < total else ""
            found = "No problem found, but not all is known" if unknown else "No problem found yet"
            assert answer.startswith(f"{found}: {used} of {total} GPU{'s' if total > 1 else ''} in use{mean}{some}; ")
            hidden = f"; {unknown} process{'es' if unknown > 1 else ''} without the hook, whose work is not known"
            assert (hidden in answer) == bool(unknown)
            words = f"; {early} process{'es' if early > 1 else ''} not judged yet" if early else ""
        assert answer.endswith(words)


@seeds(range(400))
def test_a_training_on_the_cpu_may_hold_a_gpu(seed: int) -> None:
    """As a program does that asks torch for its GPUs, and leaves the model on the CPU."""
    node = draw(seed)
    held = [gpu for gpu in node.gpus if gpu.up and not on(node, gpu.uuid) and not gpu.faulty]
    program = next((p for p in node.programs if p.condition == "on_cpu" and p.in_trouble), None)
    if not held or program is None:
        return
    program.gpus = [held[0].uuid]
    facts = facts_of(node)

    (shown,) = [gpu for gpu in facts["gpus"] if gpu["uuid"] == held[0].uuid]
    (problem,) = [problem for problem in facts["problems"] if program.process in problem["processes"]]
    assert (shown["state_words"], problem["gpus"]) == ("trains on CPU", [held[0].uuid])
    assert shown["level"] == ("bad" if program.cause else "poor")
    said = facts["answer"].partition(" held by a training on the CPU: ")[0].rpartition("; ")[2]
    assert int(said.split()[0]) >= 1
    assert str(program.pid) in table(decoded(Status, facts), False, NOW, 120)


@seeds(SEEDS)
def test_each_program_with_trouble_is_named_with_its_share_and_owner(seed: int) -> None:
    node, facts = world(seed)
    problems = {label: problem for problem in facts["problems"] for label in problem["processes"]}

    for program in node.programs:
        assert (program.process in problems) == program.in_trouble, program
        if program.in_trouble:
            problem = problems[program.process]
            assert (problem["subject"], set(problem["gpus"]) >= set(program.gpus)) == (program.name, True)
            lost = f"{100 * (program.ratio or 0.0):.0f} %"
            in_all = (
                problem["detail"].startswith(f"{lost} of its GPU time")
                or f"to this, {lost} in all" in problem["detail"]
            )
            assert program.ratio is None or in_all
            assert problem["advice"]
            said = problem["detail"].split(", ")
            assert [f"user {program.user}"] * bool(program.user) == [x for x in said if x.startswith("user ")]
            assert (f"Slurm job {program.job}" in said) == bool(program.job)
            if program.condition == "on_cpu" and not program.cause:
                waits = f"waits for data {100 * (program.waits or 0):.0f} % of its time"
                assert (problem["text"], problem["grave"]) == (waits, False)


@seeds(SEEDS)
def test_the_advice_on_a_loader_leaves_out_what_is_so(seed: int) -> None:
    node, facts = world(seed)
    problems = {label: problem for problem in facts["problems"] for label in problem["processes"]}
    starved = [p for p in node.programs if p.cause == "data_loading" or (p.condition == "on_cpu" and not p.cause)]

    for program in [p for p in starved if p.in_trouble]:
        advice, workers = problems[program.process]["advice"], program.loader.get("workers")
        assert ("num_workers" in advice) == (workers == "0")
        assert workers is None or f"(now {workers})" in advice
        assert ("pinned" in advice) == (bool(program.gpus) and program.loader.get("pin_memory") != "yes")
        assert ("prefetching" in advice) == (not program.loader)
        assert "faster storage" in advice


@seeds(SEEDS)
def test_the_errors_of_a_gpu_are_one_problem_with_the_advice_of_the_gravest(seed: int) -> None:
    node, facts = world(seed)
    found = [p for p in facts["problems"] if p["kind"] in {"gpu_down", "gpu_health", "xid"}]

    assert sorted(uuid for p in found for uuid in p["gpus"]) == sorted(
        gpu.uuid for gpu in node.gpus if not gpu.up or gpu.faulty or gpu.xid in {48, 79}
    )
    for problem in found:
        (gpu,) = [gpu for gpu in node.gpus if gpu.uuid in problem["gpus"]]
        said = f"{problem['text']} {problem['detail'] or ''}"
        errors = (
            (gpu.xid == 79, "Xid 79 (GPU has fallen off the bus) at ", ""),
            (gpu.up and gpu.remapping_failed, "remapping of a faulty memory row failed", ""),
            (gpu.up and gpu.reset, "requires a reset", ""),
            (gpu.up and gpu.uncorrected, "uncorrected memory error", "check the kernel log"),
            (gpu.xid == 48, "Xid 48 (Double bit ECC error) at ", "check the kernel log"),
            (gpu.up and gpu.remapping_pending, "waits to be remapped", "programs on it are not affected"),
        )
        for true, words, _ in errors:
            assert (words in said) == bool(true)
        if gpu.up:
            first = next((words, advice) for true, words, advice in errors if true)
            assert first[0] in problem["text"]
            assert first[1] in (problem["advice"] or "")
            wrong = "may have computed with wrong data" in (problem["advice"] or "")
            assert bool(first[1] or wrong) == bool(problem["advice"])
            assert wrong or not gpu.uncorrected
            here = [p for p in on(node, gpu.uuid) if p.condition not in {"display", "ended"}]
            assert said.count("used by ") == bool(here)
            if here:
                one = here[0]
                owner = [f"pid {one.pid}", *([f"Slurm job {one.job}"] if one.job else [])]
                owner += [f"user {one.user}"] if one.user else []
                assert len(here) > 3 or f"{one.name} ({', '.join(owner)})" in said
                assert (f" and {len(here) - 3} more" in said) == (len(here) > 3)


@seeds(SEEDS)
def test_the_state_of_each_gpu_is_the_drawn_truth(seed: int) -> None:
    node, facts = world(seed)

    for gpu, shown in zip(node.gpus, facts["gpus"], strict=True):
        assert (shown["level"], shown["state_words"]) == state(node, gpu)
        assert (shown["summary"] is None) == (shown["state_words"] == "free" and not running(node, gpu.uuid))


@seeds(SEEDS)
def test_a_program_that_ended_or_is_not_judged_yet_is_not_called_well(seed: int) -> None:
    node, facts = world(seed)
    shown = {p["process"]: p for p in (*(p for gpu in facts["gpus"] for p in gpu["processes"]), *facts["without_gpu"])}
    text = text_of(seed, 200)

    for program in node.programs:
        found = shown[program.process]
        assert (found["judging_since"] is not None) == (program.condition == "judging")
        assert (found["ended"] is not None) == (program.condition == "ended")
        if program.condition in {"judging", "ended"}:
            assert (found["level"], found["advice"]) == ("none", None)
        if program.condition == "ended":
            assert (found["state_words"], found["phase"], found["last_step"] is None) == ("ended", None, True)
    assert ("ended 7.0 s ago" in text) == any(p.condition == "ended" for p in node.programs)


@seeds(SEEDS)
def test_no_program_that_has_ended_is_in_a_headline(seed: int) -> None:
    node = draw(seed)
    ended = [program for program in node.programs if program.condition == "ended"]
    for number, program in enumerate(ended):
        program.name = f"over-{number}.py"
    facts = facts_of(node)

    headlines = [facts["answer"], *(p["subject"] for p in facts["problems"]), *(g["summary"] for g in facts["gpus"])]
    assert not any("over-" in (line or "") for line in headlines)


@seeds(SEEDS)
def test_the_totals_are_those_of_the_gpus_that_answer(seed: int) -> None:
    node, facts = world(seed)
    up = [gpu for gpu in node.gpus if gpu.up]
    whole = [gpu.load for gpu in up if not gpu.mig]
    parts = [load for gpu in up for _, _, load in gpu.mig if load is not None]
    totals = facts["totals"]

    assert (totals["gpus"], totals["up"], totals["load_gpus"]) == (len(node.gpus), len(up), len(whole))
    assert totals["load"] == (pytest.approx(sum(whole) / len(whole)) if whole else None)
    assert totals["mig_load"] == (pytest.approx(sum(parts) / len(parts)) if parts else None)
    assert totals["mig_devices"] == sum(len(gpu.mig) for gpu in up)
    assert totals["power_watts"] == (pytest.approx(sum(gpu.power for gpu in up)) if up else None)


@functools.cache
def text_of(seed: int, width: int) -> str:
    return table(decoded(Status, world(seed)[1]), False, NOW, width)


def fits(seed: int, width: int) -> None:
    """Check a text: no line is wider than the terminal, the answer stands first, and problems follow it."""
    (node, facts), text = world(seed), text_of(seed, width)
    flat = squeezed(text)

    assert [line for line in text.splitlines() if columns(line) > width] == []
    assert set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert flat.startswith(squeezed(printed("node-7: " + facts["answer"])))
    named = [f"{p['subject']}{'' if p['processes'] else ':'}{p['text']}" for p in facts["problems"]]
    places = [flat.index(squeezed(printed(problem))) for problem in named]
    assert all(place < flat.index("GPUNAME") for place in places)
    # A pid is never cut, and stands apart from what follows it; nor does a line end between a number and its unit.
    words = text.split()
    assert all(words.count(str(program.pid)) >= (len(program.gpus) or 1) for program in node.programs)
    assert width < 41 or not re.findall(r"\d\n +(?:%|ms|s|min|h|GiB|W|°C)(?!\w).*", text)


@pytest.mark.parametrize("width", ALL_WIDTHS)
@seeds(SEEDS)
def test_the_text_fits_and_shows_problems_first(seed: int, width: int) -> None:
    fits(seed, width)


@seeds(ALL_WIDTHS, "width")
def test_the_text_of_a_full_node_fits(width: int) -> None:
    fits(CROWD, width)


@seeds(SEEDS)
def test_only_the_colours_differ(seed: int) -> None:
    assert re.sub(r"\x1b\[[\d;]+m", "", table(decoded(Status, world(seed)[1]), True, NOW, 80)) == text_of(seed, 80)


@seeds([*SEEDS, CROWD])
def test_the_answer_is_at_both_ends_of_a_text_that_is_higher_than_the_terminal(seed: int) -> None:
    text = text_of(seed, 200)
    heading = text.partition("\n\n")[0] + "\n"

    for height in (5, 24, 40, 10_000):
        more = f"\n{heading}" if text.count("\n") >= height else ""
        assert table(decoded(Status, world(seed)[1]), False, NOW, 200, height) == text + more


@seeds([*SEEDS, *[78] * 5, CROWD])  # 78, on each day: the fault of a GPU explains a training
def test_the_exit_status_says_what_needs_a_person(seed: int) -> None:
    node, facts = world(seed)
    broken = any(not g.up or g.reset or g.remapping_failed or g.remapping_pending or g.uncorrected for g in node.gpus)
    slowed = any(gpu.up and gpu.slowed not in HARMLESS for gpu in node.gpus)
    ill = broken or slowed or any(gpu.faulty or gpu.xid in {48, 79} for gpu in node.gpus)
    waste = bool(node.unexplained) or any(p.in_trouble for p in node.programs)
    found = decoded(Status, facts)

    assert exit_status(found) == (1 if ill else 3 if waste else 0)
    assert (exit_status(found, "health"), exit_status(found, "repair")) == (int(ill), int(broken))


@pytest.mark.parametrize("width", WIDTHS)
@seeds(SEEDS)
def test_every_gpu_stands_in_the_text(seed: int, width: int) -> None:
    (node, facts), text = world(seed), text_of(seed, width)
    lines = text.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("GPU  NAME"))
    for gpu in node.gpus:
        (row,) = [x for x in lines[heading:] if re.match(rf" *{gpu.index} ", x) and not re.match(r" {5}", x)]
        for _, profile, load in gpu.mig if gpu.up else ():
            ratio = "-" if load is None else f"{100 * load:.0f} %"
            assert any(re.match(rf" {{5}}MIG {re.escape(profile)} .* busy +{ratio}  ", line) for line in lines)
        if not gpu.up:
            assert gpu.uuid in text
            continue
        fields = re.split(r" {2,}", row.strip())
        busy = "MIG" if gpu.mig else f"{100 * gpu.load:.0f} %"
        state = next(shown["state_words"] for shown in facts["gpus"] if shown["uuid"] == gpu.uuid)
        values = [busy, busy, "79.0/80.0", f"{gpu.power:.0f}/700", "64 °C", state]
        assert [fields[0], *fields[2:]] == [str(gpu.index), *values]
        assert len(fields[1]) >= 5 or fields[1] == gpu.name.removeprefix("NVIDIA ")


@pytest.mark.parametrize("width", WIDTHS)
@seeds(SEEDS)
def test_no_two_values_of_a_process_run_together(seed: int, width: int) -> None:
    node, lines = world(seed)[0], text_of(seed, width).splitlines()
    words = {"well": "training", "limited": "training", "stalled": "stalled", "idle": "idle"}
    words |= {"on_cpu": "on the CPU", "unhooked": "no hook", "display": "display", "judging": "training"}
    words |= {"ended": "ended", "resting": "idle"}

    for program in node.programs:
        rows = [line for line in lines if re.match(rf" {{5,}}{program.pid}  ", line)]
        assert len(rows) == (len(program.gpus) or 1)
        load = "-" if program.load is None or not program.gpus else f"{100 * program.load:.0f} %"
        memory = f"{program.memory / GIB:.1f}" if program.gpus else "-"
        state = "server" if program.serves else words[program.condition]
        expected = [str(program.pid), load, memory, "-", state]
        for row in rows:
            *fields, name = re.split(r" {2,}", row.strip(), maxsplit=5)
            assert fields == expected
            job, user = program.job and f"Slurm job {program.job}", program.user and f"user {program.user}"
            shown = printed(f"{program.name} {', '.join(filter(None, (job, user)))}".strip())
            assert name == shown or (name.endswith("…") and shown.startswith(name[:-1]) and columns(name) >= 11)


def test_only_programs_on_wasted_gpus_are_named_as_their_cause() -> None:
    gpus = [Gpu(f"GPU-{index}", index, "H100") for index in range(2)]
    stalled = [Program(f"s{n}", 10 + n, f"beside{n}.py", "stalled", ["GPU-0"]) for n in range(3)]
    good = Program("g", 20, "good.py", "well", ["GPU-0"])
    culprit = Program("c", 21, "starved.py", "limited", ["GPU-1"], "data_loading", 0.7)

    answer = facts_of(Node(gpus, [*stalled, good, culprit]))["answer"]

    assert answer == "1 of 2 GPUs wasted: starved.py waits for its data loader (70 % lost)"


@seeds(range(20))
def test_gpus_that_are_down_with_their_driver_are_one_problem(seed: int) -> None:
    dice = random.Random(seed)
    gpus = [Gpu(f"GPU-{index}", index, "H100", up=False, reason="driver_down") for index in range(dice.randint(1, 9))]
    for gpu in gpus:
        gpu.xid = dice.choice((None, None, 79))
    facts = facts_of(Node(gpus, []))

    down = [problem for problem in facts["problems"] if problem["kind"] == "gpu_down"]
    plain = [gpu.uuid for gpu in gpus if gpu.xid is None]
    assert sorted(problem["gpus"] for problem in down) == sorted(
        ([plain] if plain else []) + [[gpu.uuid] for gpu in gpus if gpu.xid]
    )
    assert all(problem["text"] == "down: the driver is down" for problem in down)
    assert [gpu["state_words"] for gpu in facts["gpus"]] == ["down"] * len(gpus)
