"""The GPU day without a GPU: a step that fails costs nothing but itself, and what was measured stays."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qa.bench.gpu.day import BESIDE, TRAININGS, Day, planted, tables

_PARTS = """
import json, sys, time
def told(part, **facts): print(json.dumps({"part": part} | facts), flush=True)
told("imported"); word = sys.stdin.readline().strip(); told("built", scale=0.5)
while word != "end":
    after = sys.stdin.readline().strip()
    told(word, rate=1.0 if word == "bad" else 3.0)
    word = after
"""


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    monkeypatch.setattr(Day, "served", lambda _: True)
    made = Day(tmp_path, 100.0, rehearse=False)
    yield made
    made.end()


def test_each_cause_is_planted_in_both_models() -> None:
    assert len(set(TRAININGS)) == len(TRAININGS)
    assert {(cause, model) for cause, _ in TRAININGS for model in ("conv", "transformer")} == set(TRAININGS)
    assert not {cause for cause, _ in TRAININGS} & set(BESIDE)


def test_a_training_is_measured_in_alternating_parts(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qa.bench.gpu.day.judged", lambda *_: "training_state 1\n")
    monkeypatch.setattr("qa.bench.gpu.day._OTHER", 0.0)
    program = day.start([sys.executable, "-c", _PARTS])

    day.measure("healthy", "conv", 0.0, lambda: planted(day, "healthy", "conv", program))

    (result,) = (json.loads(line) for line in (day.out / "day.jsonl").read_text().splitlines())
    assert [word for word, _ in result["parts"]] == ["bad", "good", "bad", "good"]
    assert (result["speedup"], result["scale"]) == (3.0, 0.5)
    assert "3.00 (3.00 to 3.00)" in (day.out / "day.md").read_text()


def test_a_step_that_fails_is_told_and_repeated_by_the_next_run(day: Day) -> None:
    program = day.start([sys.executable, "-c", "raise SystemExit('no such device')"])
    day.measure("healthy", "conv", 0.0, lambda: program.heard("imported", 20.0))
    day.measure("healthy", "transformer", float("inf"), dict)
    day.measure("cost", "", 0.0, lambda: {"measured": 1})

    again = Day(day.out, 100.0, rehearse=False)
    again.end()

    failed = {(r["name"], r["model"]): r.get("failed") for r in again.results}
    assert "no such device" in str(failed["healthy", "conv"])
    assert failed["healthy", "transformer"] == "not reached"
    assert again.done("cost")
    assert not again.done("healthy", "conv")
    assert "not reached" in tables(again.results)


def test_a_hung_program_ends_with_all_that_it_started(day: Day) -> None:
    source = "import subprocess, sys, json\nchild = subprocess.Popen(['sleep', '600'])\n"
    source += "print(json.dumps({'part': 'child', 'pid': child.pid}), flush=True)\nchild.wait()\n"
    program = day.start([sys.executable, "-c", source])
    child = program.heard("child", 20.0)["pid"]

    with pytest.raises(TimeoutError, match="no built in time"):
        program.heard("built", 0.2)
    program.end()

    assert _ended(child)


def test_nothing_is_waited_for_after_the_end_of_the_run(day: Day) -> None:
    day.until = time.monotonic() - 60.0
    program = day.start(["sleep", "600"])

    with pytest.raises(TimeoutError):
        program.heard("end", 600.0)


def _ended(pid: int) -> bool:
    until = time.monotonic() + 20.0
    while time.monotonic() < until:
        try:
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_training_that_ends_early_is_no_measurement(day: Day) -> None:
    program = day.start([sys.executable, "-c", _PARTS.replace("told(word", "sys.exit('CUDA error')#")])

    day.measure("healthy", "conv", 0.0, lambda: planted(day, "healthy", "conv", program))

    assert "CUDA error" in day.results[0]["failed"]


def test_a_model_that_does_not_fit_is_halved() -> None:
    torch = pytest.importorskip("torch")
    from qa.bench.gpu.trainings import fitted  # noqa: PLC0415  (needs torch)

    tried = []

    def make(scale: float) -> tuple[Callable[[], None], Callable[[], None]]:
        tried.append(scale)
        if scale > 0.25:
            raise torch.OutOfMemoryError
        return lambda: None, lambda: None

    assert fitted(make, 1.0)[1] == 0.25
    assert tried == [1.0, 0.5, 0.25]
    with pytest.raises(torch.OutOfMemoryError):
        fitted(lambda _: make(1.0), 1.0)
