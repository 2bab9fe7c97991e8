"""A program with the hook from which nothing arrives for minutes is not called starting for ever."""

from __future__ import annotations

import random
from typing import Any

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.nodes import NOW
from qa.worlds.scraped import snapshot_of

HOST = {"process": "p", "pid": "7", "torch_build": "cuda", "workload_command": "a.py"}


def moment(second: float, *, hook: bool, reports: bool, on_gpu: bool) -> Snapshot:
    families = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("gpu_process_host_info", (HOST | {"hook": "yes" if hook else ""}, 1)),
        family("gpu_process_memory_used_bytes", *([({"process": "p", "uuid": "GPU-a"}, 1 << 30)] if on_gpu else [])),
        family("torch_process_info", *([({"process": "p", "pid": "7"}, 1)] if reports else [])),
    )
    return snapshot_of(NOW + second, 100.0 + second, (Section("all", families),), {})


@seeds(range(40))
def test_after_two_minutes_without_a_report_it_is_said_so(seed: int) -> None:
    dice = random.Random(seed)
    hook, on_gpu = dice.random() < 0.8, dice.random() < 0.5
    first_report = dice.choice([None, dice.uniform(0.0, 300.0)])
    end, step = dice.uniform(10.0, 400.0), dice.choice([1.0, 2.0, 5.0])
    history, second = History(), 0.0
    while second <= end:
        reports = first_report is not None and second >= first_report
        last = moment(second, hook=hook, reports=reports, on_gpu=on_gpu)
        history.feed(last)
        second += step
    second -= step
    facts: dict[str, Any] = status(last, history)
    (process,) = facts["gpus"][0]["processes"] if on_gpu else facts["without_gpu"]

    reporting = first_report is not None and second >= first_report
    if not hook or reporting or abs(second - 120.0) <= 5.0:
        return
    silent = second > 120.0
    assert process["starting"]
    assert process["silent"] == silent
    assert facts["level"] == "none"
    assert not on_gpu or ("not judged yet" in facts["answer"]) != silent
    assert not on_gpu or ("; no report from the hook of 1 process" in facts["answer"]) == silent
    assert process["state_words"] == ("no report" if silent else "starting")
    html = "".join(content(decoded(Status, facts), None, NO_LINKS))
    for view in (" ".join(table(decoded(Status, facts), False, NOW, 200).split()), html):
        assert ("no hook report reaches this daemon" in view) == silent
        assert ("GPUGAUGE_HOOK_SOCKET" in view) == silent
        assert ("starting: the hook has not" in view) != silent


def test_a_report_ends_the_silence() -> None:
    history = History()
    for second in range(0, 300, 5):
        last = moment(float(second), hook=True, reports=second > 200, on_gpu=True)
        history.feed(last)
    (process,) = status(last, history)["gpus"][0]["processes"]

    assert (process["silent"], process["starting"], process["hook"]) == (False, False, True)
