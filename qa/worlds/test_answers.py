"""The answer about each process of drawn nodes behind a server as the daemon."""

from __future__ import annotations

import math
import re
from pathlib import Path

from tests.doctor.cases import case
from tests.doctor.daemons import answers_of, serving
from tests.doctor.test_answer import shown, without_blanks
from tests.drawn import seeds

from gpugauge.base.text import printable
from gpugauge.doctor import process
from gpugauge.doctor.answer import answer
from gpugauge.status.measured_advice import BY_CAUSE
from gpugauge.status.words import RUN_ADVICE
from gpugauge.terminal.columns import cells
from gpugauge.verdict.causes import CAUSES
from qa.worlds.nodes import Program, draw

SEEDS = range(12)
# By the number of loader workers, "" if it is not known.
LOADER_TEXTS = {
    "": [CAUSES["data_loading"].advice],
    "0": ["num_workers of the DataLoader (now 0), pinned memory (pin_memory=True), faster storage or decoding"],
    "1": ["more loader workers (now 1), pinned memory (pin_memory=True), faster storage or decoding"],
    "4": ["more loader workers (now 4), faster storage or decoding"],
}


def expected(program: Program) -> list[str]:
    """Return texts that must be shown of a program."""
    loads = program.cause == "data_loading"
    texts = [f"{printable(program.name)}, pid {program.pid}"]
    if program.cause:
        texts += [f"[{program.cause}]"]
        # What is already so is left out of the advice on a loader.
        texts += LOADER_TEXTS[program.loader.get("workers", "")] if loads else []
        # qa/worlds/test_measured_advice.py has the values in the others.
        advice = "no measured value explains it" if program.cause == "unknown" else CAUSES[program.cause].advice
        texts += [] if loads or program.cause in BY_CAUSE else [advice]
    if program.speedup and program.condition != "on_cpu":
        # No gain is larger than the time lost to its cause allows.
        named = (program.ratio or 0.0) - program.rest
        most = 1.0 / (1.0 - named) if 0.0 < named < 1.0 else math.inf
        low, middle, high = (f"{min(most, by * program.speedup):.2g}" for by in (0.9, 1.0, 1.2))
        narrow = min(most, 1.2 * program.speedup) <= 1.2 * min(most, 0.9 * program.speedup)
        words = f"about {middle}" if narrow else f"{'up' if low == '1' else f'about {low}'} to {high}"
        texts.append(f"→ steps {words} times as fast, then limited by")
    texts += [RUN_ADVICE, "seen from outside only"] if program.condition == "unhooked" else []
    texts += [f"py-spy dump --pid {program.pid}"] if program.condition == "stalled" else []
    return texts + (["there is no GPU here"] if program.condition == "on_cpu" and not program.cause else [])


@seeds(SEEDS)
def test_each_process_of_a_node_is_answered(tmp_path: Path, seed: int) -> None:
    node = draw(seed)
    with serving(answers_of(node)) as url:
        for program in node.programs:
            found = answer(case(tmp_path, pid=program.pid, url=url))
            assert found.process is not None, found
            if program.condition == "ended":
                assert "ended 7.0 s ago" in " ".join(shown(tmp_path, found, 120))
                continue
            assert found.process.facts.process == program.process
            assert sorted(found.plain()["gpus"]) == sorted(program.gpus)
            for width in (80, 120, 200):
                text = shown(tmp_path, found, width)
                assert max(map(cells, text)) <= width
                assert all(without_blanks(part) in without_blanks("".join(text)) for part in expected(program))
                assert len(text) <= 40
                gained = any("→ steps" in line for line in text)
                assert gained == any("→ steps" in part for part in expected(program))


@seeds(SEEDS)
def test_the_checks_advise_what_the_answer_advises(tmp_path: Path, seed: int) -> None:
    node = draw(seed)
    with serving(answers_of(node)) as url:
        for program in node.programs:
            if not program.cause or program.condition == "ended":
                continue
            examined = case(tmp_path, pid=program.pid, url=url)
            found = answer(examined).process
            assert found is not None
            changes = [change.change for change in found.facts.changes if change.cause == program.cause]
            assert process.state(examined).advice == changes[0]


@seeds(range(30))
def test_what_is_wrong_with_its_gpu_stands_first(tmp_path: Path, seed: int) -> None:
    node = draw(seed)
    with serving(answers_of(node)) as url:
        for program in node.programs:
            found = answer(case(tmp_path, pid=program.pid, url=url))
            text = shown(tmp_path, found, 200)
            own = [gpu for gpu in node.gpus if gpu.uuid in program.gpus and gpu.up]
            grave = [gpu for gpu in own if gpu.reset or gpu.remapping_failed]
            if grave:
                words = " ".join(" ".join(text).split())
                said = [gpu.reset and "the driver requires a reset" in words for gpu in grave]
                said += [
                    gpu.remapping_failed and "the remapping of a faulty memory row failed" in words for gpu in grave
                ]
                assert re.match(r"GPU \S+: ", text[0])
                assert any(said)
                assert words.index(": in this order 1. ") < words.index(f", pid {program.pid}")
                assert {gpu.uuid for gpu in grave} <= {u for p in found.plain()["problems"] for u in p["gpus"]}
            well = all(gpu.up for gpu in node.gpus) and not any(gpu.faulty or gpu.slowed or gpu.xid for gpu in own)
            if well:
                assert f", pid {program.pid}" in text[0]
