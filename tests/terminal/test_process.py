"""One process on one screen: what is not known, advice, and the size of the text."""

from __future__ import annotations

import re
from typing import Any

from qa.worlds.nodes import NOW
from qa.worlds.processes import PARTS, Drawn, drawn

from gpugauge.node.node import Diagnosis
from gpugauge.status.advice import advice_of
from gpugauge.status.model import ProcessStatus, as_json, decoded
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import Process
from gpugauge.verdict.loaders import SLOW_BATCHES
from tests.status.test_advice import subject


def test_one_screen_of_24_lines() -> None:
    """With one cause; the most that can come together needs 40."""
    one = Drawn("train.py", {"data": 0.6, "rest": 0.4}, "data_loading", {"data_loading": 2.6})
    most = Drawn(
        "train.py",
        dict.fromkeys(PARTS, 1 / len(PARTS)),
        "memory_swap_io",
        {"memory_swap_io": 2.6, "data_loading": 1.4, "host_bound": None},
        ["profiler", "empty_cache"],
    )

    assert len(process_screen(one.process(), NOW, 80, colour=False)) <= 18
    assert len(process_screen(most.process(), NOW, 80, colour=False)) <= 40


def changed(**facts: Any) -> str:
    process = Drawn("train.py", {}, None).process()
    known = decoded(ProcessStatus, {**as_json(process.facts), **facts})
    return "\n".join(process_screen(Process(known), NOW, 200, colour=False))


def test_what_is_not_known_is_said() -> None:
    outside = changed(hook=False, state="unknown", state_words="no hook", undecidable=["transfer"])
    assert "seen from outside only" in outside
    assert outside.count("not known without the hook") == 2
    assert "not decidable" not in outside

    young = changed(state=None)
    assert "its state is not known yet" in young
    assert "no steps in the last minute" in young

    idle = changed(state="held_idle", state_words="idle")
    assert "idle: it holds a GPU and runs nothing on it" in idle
    assert "it runs nothing" in idle

    unseen = changed(undecidable=["data_loading", "host_bound"])
    assert "not decidable here: data_loading, host_bound" in unseen
    assert "gpugauge.hook.batches()" in unseen


def test_a_training_on_the_cpu_where_there_is_no_gpu() -> None:
    gain = {"expected": 5.3, "lower": 4.7, "upper": 6.1, "next": "cpu"}
    advice = {"cause": "data_loading", "topic": "limit", "change": "more workers", "gain": gain}
    shown = changed(
        state="training_on_cpu", state_words="on the CPU", changes=[advice], data_wait_ratio=0.6, level="poor"
    )
    assert "waits for" not in changed(state="training_on_cpu", changes=[advice], data_wait_ratio=0.04, level="good")
    assert "training on the CPU · no GPU" in shown
    assert "phase" not in shown
    assert "it waits for data 60 % of its time [data_loading]; there is no GPU here" in shown
    assert "→ steps about 4.7 to 6.1 times as fast, then limited by its computation on the CPU" in shown


def test_a_number_of_workers_has_its_gain_where_that_of_all_waits_is_not_decided() -> None:
    """The row of the loader, as a process without a decided gain has it."""
    slow = Diagnosis(SLOW_BATCHES, 16, 15.2, 15.2)
    process = subject(state="training_on_cpu", data_wait_ratio=0.99, loader={"workers": "0"}, diagnosis=slow)
    found = advice_of(process)
    shown = changed(state="training_on_cpu", state_words="on the CPU", changes=as_json(found))

    assert "1. num_workers=16 in the DataLoader (now 0)" in shown
    assert "→ steps about 15 times as fast, then it still waits for its data loader" in shown
    assert "not decided" not in shown


def test_only_the_colours_differ() -> None:
    process = drawn(5).process()
    plain_lines, coloured = (process_screen(process, NOW, 80, colour=colour) for colour in (False, True))

    assert coloured != plain_lines
    assert [re.sub(r"\x1b\[[\d;]+m", "", line) for line in coloured] == plain_lines
