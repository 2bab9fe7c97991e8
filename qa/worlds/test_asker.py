"""When NCCL is asked, and for how long its answers and its files count, in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import cases

from gpugauge.collectors.training import nccl
from gpugauge.node import training
from gpugauge.workload.inspector import Dump
from gpugauge.workload.ras import Launches
from qa.worlds.test_nccl import _AtOnce

NOBODY: Any = None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Launches]:
    """What NCCL says of each process, of others nothing; asked in no time, seen with the next call."""
    monkeypatch.setattr(nccl, "Background", defaultdict(lambda: _AtOnce))
    return {}


@cases("size", [2, 64, 320, 4096])
def test_large_jobs_are_asked_less_often(size: int, said: dict[str, Launches], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: defaultdict[str, list[int]] = defaultdict(list)
    second, asker = 0, nccl.Asker(NOBODY)

    def inquire(_: object, wanted: list[str], __: object) -> dict[str, Launches]:
        for process in wanted:
            asked[process].append(second)
        return {process: said[process] for process in wanted if process in said}

    monkeypatch.setattr(nccl, "inquire", inquire)
    said["large"] = Launches(7, behind=2, size=size)
    node: Any = SimpleNamespace(hosts={"large": NOBODY, "silent": NOBODY, "healthy": NOBODY})
    for second in range(600):
        known = asker.ask(node, {"large", "silent", "not here"}, float(second))
        assert known.keys() == ({"large"} if second else set())

    every = 1 + math.ceil(15 + size / 32)  # an answer is seen a second later
    assert asked == {"large": [*range(0, 600, every)], "silent": [*range(0, 600, 60)]}
    said.clear()  # it answers no more: what it said counts until two minutes after the next question was due
    until = asked["large"][-1] + 1 + 15 + size / 32 + 120
    for second in range(600, 1200):
        assert bool(asker.ask(node, {"large"}, float(second))) == (second < until), second
    said["large"] = Launches(7, size=size)
    second = 1200
    asker.ask(node, set(), 1200.0)
    asked.clear()
    asker.ask(node, {"large"}, 1201.0)  # a suspect anew
    assert asked.keys() == {"large"}


@cases(("age", "shown"), [(0.0, True), (89.0, True), (90.0, True), (91.0, False), (-89.0, True), (-91.0, False)])
def test_a_file_counts_for_a_while(
    age: float, shown: bool, said: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since: list[float] = []
    written = {"GPU-0": Dump(1000, 5000.0 - age, {})}

    def dumps(_: Path, uuids: set[str], after: float) -> tuple[dict[str, Dump], int]:
        since.append(after)
        return written, 0

    monkeypatch.setattr(nccl, "dumps", dumps)
    monkeypatch.setattr(training, "by_uuid", lambda *_: {"GPU-0": 1})
    inspector = nccl.Inspector()
    inspector.folder = tmp_path
    monkeypatch.setattr(inspector, "_networks", SimpleNamespace(slow=lambda *_: set()))
    session = SimpleNamespace(connected=True, peer_uid=1000, hello=SimpleNamespace(started=100.0))
    for second in range(31):
        node: Any = SimpleNamespace(sessions={"a": session}, monotonic=float(second), timestamp=5000.0)
        found = inspector.read(node)
    assert (bool(found), since) == (shown, [5000.0 - 90.0] * 3)
