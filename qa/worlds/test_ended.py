"""Trainings that have ended: each is shown once in every view, with its reason in words."""

from __future__ import annotations

import random
import re
import signal
from dataclasses import dataclass

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.ended import MAX_LISTED, end_words
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import processes
from gpugauge.terminal.screen import process_lines
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.nodes import NOW
from qa.worlds.reading import Reader
from qa.worlds.scraped import snapshot_of

# Reason, exit code and signal, as the daemon exports them, and what must be read.
ENDS = {
    ("finished", "0", ""): "finished",
    ("error", "1", ""): "error, exit code 1",
    ("error", "", ""): "error",
    ("out_of_memory", "1", ""): "out of memory, exit code 1",
    ("interrupted", "", "2"): "interrupted",
    ("killed", "", "9"): "killed by signal 9 (SIGKILL)",
    ("killed", "", "11"): "killed by signal 11 (SIGSEGV)",
    ("killed", "", "45"): "killed by signal 45",
    ("killed", "", ""): "killed, or it crashed",
    ("oom_killed", "", "9"): "killed by the kernel, host memory was used up",
    ("rejected", "", ""): "its connection was closed for invalid messages",
    ("other", "", ""): "the reason is not known",
    ("", "", ""): "",
}


@dataclass
class Ended:
    process: str
    pid: int
    end: tuple[str, str, str]
    ago: float
    data: float
    other: float
    listed: bool  # by the last scan of the processes, or still on a GPU


def drawn(seed: int) -> tuple[list[Ended], Snapshot]:
    dice = random.Random(seed)
    found = [
        Ended(
            f"e{number}",
            5000 + number,
            dice.choice(list(ENDS)),
            round(dice.uniform(0.1, 50.0), 1) + number / 1000,
            dice.uniform(0.1, 60.0),
            dice.uniform(0.1, 60.0),
            dice.random() < 0.3,
        )
        for number in range(dice.choice([0, 1, 3, MAX_LISTED + 9]))
    ]
    listed = [e for e in found if e.listed]
    families = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family(
            "torch_process_info",
            ({"process": "alive", "pid": "7", "command": "alive.py"}, 1),
            *(({"process": e.process, "pid": str(e.pid), "command": f"train{e.pid}.py"}, 1) for e in found),
        ),
        family("gpu_process_host_info", *(({"process": e.process, "pid": str(e.pid)}, 1) for e in listed)),
        family("training_state", ({"process": "alive", "state": "training"}, 1)),
        family("training_end_timestamp_seconds", *(({"process": e.process}, NOW - e.ago) for e in found)),
        family(
            "training_end_info",
            *(
                ({"process": e.process, **dict(zip(("reason", "exit_code", "signal"), e.end, strict=True))}, 1)
                for e in found
                if e.end[0]
            ),
        ),
        family(
            "torch_phase_seconds_total",
            *(({"process": e.process, "phase": "starting"}, 1000.0) for e in found),
            *(({"process": e.process, "phase": "loading"}, e.data) for e in found),
            *(({"process": e.process, "phase": "training"}, e.other) for e in found),
        ),
        family(
            "torch_data_wait_seconds_total", *(({"process": e.process, "phase": "training"}, e.data) for e in found)
        ),
        family("torch_steps_total", *(({"process": e.process}, 1234) for e in found)),
    )
    return found, snapshot_of(NOW, 100.0, (Section("all", families),), {})


@seeds(range(20))
def test_an_ended_training_is_shown_once_with_its_reason(seed: int) -> None:
    found, snapshot = drawn(seed)
    facts = status(snapshot, History())
    before, after = content(decoded(Status, facts), None, NO_LINKS)
    page = Reader(before + "0" + after)
    text = " ".join(table(decoded(Status, facts), False, NOW, 400).split())
    lines = process_lines(processes(decoded(Status, facts)), NOW, 400)[1]

    # Those that the last scan still lists are known anyway; of the others the newest are listed.
    newest = sorted((e for e in found if not e.listed), key=lambda e: e.ago)[:MAX_LISTED]
    shown = sorted([*newest, *(e for e in found if e.listed)], key=lambda e: e.ago)
    assert [p["process"] for p in facts["ended"]] == [e.process for e in shown]
    assert [p["process"] for p in facts["without_gpu"]] == ["alive"]
    assert facts["problems"] == []
    for ended in shown:
        words = ENDS[ended.end]
        share = 100 * round(ended.data / (ended.data + ended.other), 4)
        told = f"{f': {words}' if words else ''} · 1234 steps · in all {share:.0f} % waiting for data"
        (group,) = [g for g in page.groups if g.key == "ended"]
        (row,) = [r for r in group.of("process") if r.key.split()[0] == ended.process]
        (note,) = [r for r in group.of("notes") if r.key.split()[0] == ended.process]
        assert told in note.cells[0]
        assert re.search(rf"\b{ended.pid} .* train{ended.pid}\.py ended [\d.]+ m?s ago{re.escape(told)}", text)
        assert text.count(f"train{ended.pid}.py") == 1
        state = {"": "ended", "rejected": "ended", "other": "ended"}
        state |= dict.fromkeys(("out_of_memory", "oom_killed"), "out of memory")
        assert row.cells[1] == state.get(ended.end[0], ended.end[0])
        assert sum(line.split()[0] == str(ended.pid) for _, line, _ in lines) == 1
        (process,) = [p for p in processes(decoded(Status, facts)) if p.facts.process == ended.process]
        assert f"ago: {words}" in " ".join(process_screen(process, NOW, 300, colour=False)) or not words


def test_a_kill_that_nobody_sent_has_an_advice() -> None:
    found, snapshot = drawn(3)
    assert found
    facts = status(snapshot, History())
    for process in facts["ended"]:
        by_kernel = process["end_words"] in {"killed by signal 9 (SIGKILL)", "killed, or it crashed"}
        assert ("out-of-memory killer" in (process["advice"] or "")) == by_kernel


def test_every_signal_has_words() -> None:
    assert [
        end_words("killed", "", str(int(s)))
        for s in signal.Signals
        if "SIG" not in end_words("killed", "", str(int(s)))
    ] == []
