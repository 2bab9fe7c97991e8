"""Drawn nodes: the page, read without the code that wrote it, shows what is true of the node, each thing once."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean

import pytest
from tests.drawn import seeds

from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.status.node import build
from gpugauge.status.words import RUN_ADVICE
from gpugauge.web.page.links import Links
from gpugauge.web.page.render import content
from qa.worlds.nodes import Gpu, Node, Program, crowd_of, draw
from qa.worlds.reading import Group, Reader

SEEDS = range(80)
ELEMENTS = {
    *("section", "p", "ul", "li", "details", "summary", "dl", "div", "dt", "dd", "search", "label", "input", "output"),
    *("button", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "b", "bdi", "strong", "small", "a"),
    *("svg", "path", "rect", "time", "h2"),
}
HOSTILE = (
    "</td></tr></tbody><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onfocus=alert(1) autofocus="',
    "'><svg/onload=alert(1)>",
    "<!-- {{7*7}} -->",
    "\u202egnp.exe",
    "مرحبا.py",
    "שלום " * 40,
    "x" * 4096,
    "👩‍👩‍👧‍👦" * 40,
    "a\nb\tc\x00d",
    "&lt;b&gt;",
)
LINKS = Links("https://docs.example/runbook.md", "https://grafana.example")


@dataclass
class Case:
    """A node and the page's source. `programs` are those before GPUs were `lost` and programs `ended` with them."""

    node: Node
    programs: list[Program]
    history: History
    snapshot: Snapshot
    lost: set[str]
    ended: set[str]

    @cached_property
    def html(self) -> str:
        """The content of the page."""
        return "0".join(content(build(self.snapshot, self.history), None, LINKS))

    @cached_property
    def page(self) -> Reader:
        """The elements of the page."""
        return Reader(self.html)


@cache
def drawn(seed: int) -> Case:
    """Return the case with this number, which all tests share."""
    dice = random.Random(seed)
    node = crowd_of(64, 8) if seed % 16 == 0 else draw(seed)
    for program in node.programs:
        if dice.random() < 0.5:
            program.name = dice.choice(HOSTILE)
    history, programs = node.history(), list(node.programs)
    history.feed(node.snapshot())
    lost, ended = set(), set()
    for gpu in node.gpus:
        if gpu.up and dice.random() < 0.15:
            gpu.up, gpu.reason = False, "gpu_is_lost"
            lost.add(gpu.uuid)
    for program in programs:
        if lost.intersection(program.gpus) and dice.random() < 0.5:
            ended.add(program.process)
            node.programs.remove(program)
    present = [replace(p, gpus=[uuid for uuid in p.gpus if uuid not in lost]) for p in node.programs]
    return Case(node, programs, history, Node(node.gpus, present).snapshot(), lost, ended)


def shown(name: str) -> str:
    """Return a name as the page shows it."""
    cut = name if len(name) <= 120 else f"{name[:120]}…"
    return "".join(c if c.isprintable() else "?" for c in cut)


def indexes(item: str) -> set[int]:
    """Return the GPUs of a problem."""
    named = re.search(r"\bGPUs? (\d[\d, -]*)", item)
    runs = re.findall(r"(\d+)(?:-(\d+))?", named[1]) if named else []
    return {index for first, last in runs for index in range(int(first), int(last or first) + 1)}


def own_error(gpu: Gpu) -> bool:
    """Whether a GPU has an error beside its Xid errors, with which they are shown."""
    return not gpu.up or gpu.faulty


def gpus_of(page: Reader) -> list[Group]:
    return [group for group in page.groups if group.key not in {"no GPU", "ended"}]


@seeds(SEEDS)
def test_each_gpu_and_each_process_is_shown_once(seed: int) -> None:
    case = drawn(seed)
    node, page = case.node, case.page

    assert set(page.elements) <= ELEMENTS
    # Faulty GPUs come first.
    groups = sorted(gpus_of(page), key=lambda group: [gpu.uuid for gpu in node.gpus].index(group.key))
    for gpu, group in zip(node.gpus, groups, strict=True):
        assert group.key == gpu.uuid
        (row,) = group.of("gpu")
        assert re.match(rf"(Show processes)?GPU {gpu.index} ", row.cells[0])
        here = [p for p in case.programs if gpu.uuid in p.gpus]
        here = [p for p in here if gpu.uuid in case.lost or p.process not in case.ended]
        rows = {row.key.split()[0]: row for row in group.of("process")}
        assert len(group.of("process")) == len(rows)
        assert rows.keys() == {p.process for p in here}
        for program in here:
            assert rows[program.process].cells[0].startswith(f"{shown(program.name)} pid {program.pid}")
            ended = program.process in case.ended or program.condition == "ended"
            assert ("ended" in rows[program.process].cells[1]) == ended
        assert len(group.of("mig")) == (len(gpu.mig) if gpu.up else 0)
    alone = Counter(row.key.split()[0] for group in page.groups if group.key == "no GPU" for row in group.of("process"))
    assert alone == Counter(p.process for p in node.programs if not p.gpus and p.condition != "ended")


@seeds(SEEDS)
def test_everything_that_is_wrong_is_among_the_problems(seed: int) -> None:
    case = drawn(seed)
    node, page, html = case.node, case.page, case.html
    first = html.partition("</section>")[0]

    assert html.startswith('<section aria-label="Answer">\n<p class="answer">')
    for gpu in node.gpus:
        own = [item for item in page.items if item.startswith(f"GPU {gpu.index}:")]
        assert any("down:" in i or "does not answer" in i for i in own) == (not gpu.up)
        if gpu.up:
            assert any("requires a reset" in i for i in own) == gpu.reset
            assert any("uncorrected memory error" in i for i in own) == bool(gpu.uncorrected)
            lowered = gpu.slowed not in {None, "gpu_idle", "sw_power_cap"}
            assert any("clocks lowered" in i for i in own) == lowered
        assert any(f"Xid {gpu.xid} " in i for i in own) == (
            gpu.xid in {48, 79} or (bool(own_error(gpu)) and bool(gpu.xid))
        )
        assert sum("used by " in i or "also:" in i or "down:" in i for i in own) <= 1
        used = any(gpu.uuid in p.gpus for p in node.programs if p.condition in {"well", "limited"})
        assert not (used and any("clocks lowered" in i for i in own)) or any("used by " in i for i in own)
    for program in node.programs:
        items = [item for item in page.items if item.startswith(f"{shown(program.name)} ")]
        if program.in_trouble:
            assert items
            assert all("Advice:" in item for item in items)
    assert len(page.items) == len(re.findall("<li", first))
    fault = re.compile(r"Repair of |Driver|Collector |Hook|GPUs? (?!.*(no process uses it|busy \d))")
    faulty = {index for item in page.items if fault.match(item) for index in indexes(item)}
    folded = sum(not (fault.match(item) or faulty & indexes(item)) for item in page.items[5:])
    assert re.sub("<details>.*?</details>", "", first, flags=re.DOTALL).count("<li") == len(page.items) - folded


@seeds(SEEDS)
def test_an_advice_stands_on_the_page_once(seed: int) -> None:
    case = drawn(seed)
    facts = build(case.snapshot, case.history)
    told = {(label, problem.advice) for problem in facts.problems[:200] for label in problem.processes}
    notes = {row.key.removesuffix(" notes").split()[0]: row for group in case.page.groups for row in group.of("notes")}

    for process in (*(p for gpu in facts.gpus for p in gpu.processes), *facts.without_gpu):
        once = process.advice not in {None, RUN_ADVICE} and (process.process, process.advice) not in told
        row = notes.get(process.process)
        assert ("Advice:" in " ".join(row.cells) if row else False) == once or process.process not in notes
    assert not any("Advice:" in " ".join(row.cells) for group in case.page.groups for row in group.of("gpu"))
    down = {gpu.advice for gpu in facts.gpus if not gpu.up and gpu.advice}
    assert all(case.page.text.count(advice) <= len(facts.gpus) for advice in down)


@seeds(SEEDS)
def test_the_mean_load_is_that_of_the_gpus_that_report_one(seed: int) -> None:
    case = drawn(seed)
    text, up = case.page.text, [gpu for gpu in case.node.gpus if gpu.up]
    loads = [gpu.load for gpu in up if not gpu.mig]
    parts = [load for gpu in up for _, _, load in gpu.mig if load is not None]

    def figure(name: str) -> float | None:
        found = re.search(rf" {name} (?:(\d+) %|-)", text)
        return float(found[1]) if found and found[1] else None

    assert figure("Busy, mean") == (pytest.approx(100 * fmean(loads), abs=0.51) if loads else None)
    assert figure("MIG devices busy, mean") == (pytest.approx(100 * fmean(parts), abs=0.51) if parts else None)
    assert (f" % of {len(loads)} GPU" in text) == (0 < len(loads) < len(up))


def test_a_crowd_is_folded_and_a_small_node_is_not() -> None:
    crowded = drawn(0).html
    node = draw(1)

    assert crowded.count('aria-expanded="false"') == crowded.count('class="fold"') > 50
    assert "data-folded" not in "".join(content(build(node.snapshot(), node.history()), None, LINKS))
