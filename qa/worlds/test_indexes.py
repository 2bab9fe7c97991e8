"""Devices that are named by their index, in drawn histories of a node whose GPUs are replaced and lost."""

from __future__ import annotations

import random

import pytest

from gpugauge.workload.indexes import Indexes


@pytest.mark.parametrize("seed", range(40))
def test_an_index_is_that_of_its_time(seed: int) -> None:
    d, indexes, history = random.Random(seed), Indexes(), dict[int, dict[str, str]]()
    lost, names, changes = d.random() < 0.5, [f"index:{i}" for i in range(3)], 0
    assert indexes.name("index:0", 5.0) == "index:0"
    at, before = d.randrange(1, 9), dict[str, str]()
    first = at
    for now in range(1, 40):
        found = {name: f"GPU-{d.randrange(3)}" for name in names if d.random() < 0.8}
        seen = {} if now < at else before if d.random() < 0.6 else found
        indexes.note(now, seen, whole=not lost if not before else d.random() < 0.5)
        if seen:
            first = now if not before else first
            changes += seen != before
            before = seen
        history[now] = before
    assert indexes.changes == changes
    for now, known in history.items():
        of_time = known if now >= first else {} if lost else history[first]
        assert [indexes.name(name, float(now)) for name in names] == [of_time.get(name, "") for name in names]
