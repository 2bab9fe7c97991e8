"""Samples and tokens a second, and the model FLOPs utilization: drawn trainings, the same numbers in every view."""

from __future__ import annotations

import random

import pytest
from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.metric import Family
from gpugauge.snapshot import Section
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import processes
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.nodes import NOW
from qa.worlds.scraped import snapshot_of


def families(samples: float | None, tokens: float | None, mfu: float | None) -> tuple[Family, ...]:
    def counted(name: str, value: float | None) -> Family:
        return family(name, *([({"process": "p"}, value)] if value is not None else []))

    return (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("gpu_process_memory_used_bytes", ({"process": "p", "uuid": "GPU-a"}, 1 << 30)),
        family("torch_process_info", ({"process": "p", "pid": "7", "command": "a.py"}, 1)),
        family("training_state", ({"process": "p", "state": "training"}, 1)),
        counted("torch_samples_total", samples),
        counted("torch_tokens_total", tokens),
        counted("training_mfu_ratio", mfu),
    )


@seeds(range(30))
def test_every_view_has_the_drawn_rates(seed: int) -> None:
    dice = random.Random(seed)
    rate = dice.choice([None, 0.0, dice.uniform(0.1, 9.0), dice.uniform(10, 1e5)])
    tokens = dice.choice([None, 1000.0 * (rate or 0.0)])
    mfu = dice.choice([None, round(dice.uniform(0.0, 0.9), 3)])
    points, begin = dice.randint(1, 90), dice.choice([0, 10**6])
    history = History()
    for point in range(points):
        at = 5.0 * point
        samples, counted = (None if each is None else begin + each * at for each in (rate, tokens))
        snapshot = snapshot_of(NOW + at, 100.0 + at, (Section("all", families(samples, counted, mfu)),), {})
        history.feed(snapshot)
    facts = status(snapshot, history)
    (process,) = facts["gpus"][0]["processes"]

    expected = [None if each is None or points < 2 else each for each in (rate, tokens)]
    found = [process["samples_per_second"], process["tokens_per_second"]]
    for shown, truth in zip(found, expected, strict=True):
        assert shown == (None if truth is None else pytest.approx(truth, rel=1e-6, abs=1e-6))
    assert process["mfu"] == mfu

    (listed,) = processes(decoded(Status, facts))
    page = content(decoded(Status, facts), None, NO_LINKS)[0]
    views = {
        "page": page,
        "status": " ".join(table(decoded(Status, facts), False, NOW, 300).split()),
        "top, doctor": " ".join(process_screen(listed, NOW, 300, colour=False)),
    }
    for name, text in views.items():
        assert ("samples/s" in text) == (expected[0] is not None), name
        assert ("tokens/s" in text) == (expected[1] is not None), name
        assert (f"MFU {100 * mfu:.0f} %" in text) if mfu is not None else ("MFU" not in text), name
