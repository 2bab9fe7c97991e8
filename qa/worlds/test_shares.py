"""The shares of drawn trainings: all who state them state the same numbers, the end line, the views and the report."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.drawn import seeds

from gpugauge import catalog
from gpugauge.exposition.trainings import _series as every_series
from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.ends import recap
from gpugauge.metric import Family, HistogramValue
from gpugauge.node.window import Window
from gpugauge.report.build import _shares as shares_of
from gpugauge.report.counters import Facts
from gpugauge.report.source import Series
from gpugauge.snapshot import Section
from gpugauge.verdict.shares import step_shares
from gpugauge.wire.record import PHASES, SPENT, WAITED, WORDS
from gpugauge.wire.shares import sentence
from qa.worlds.scraped import node_of

ROWS = {row.name: row for row in catalog.metrics()}
NS, STATES = 1e9, ("running", "runnable", "asleep")


class Drawn:
    """A training of less than a minute: nanoseconds by phase and by wait, and of its steps and local work."""

    def __init__(self, rng: random.Random) -> None:
        self.spent = {phase: rng.choice([0, rng.randrange(1, int(8 * NS))]) for phase in PHASES if phase != "loading"}
        self.spent["starting"] = rng.randrange(int(20 * NS))
        self.waited = {
            phase: rng.choice([0, rng.randrange(int(4 * NS))]) for phase in ("training", "evaluating", "generating")
        }
        self.spent["training"] += 1
        self.spent["loading"] = sum(self.waited.values())
        self.steps = self.spent["training"] + self.waited["training"]
        self.local = rng.choice([None, self.steps - rng.randrange(self.spent["training"])])
        # By state, what the training thread does outside of its waits for batches, and in batches that it loads itself.
        parts = sorted(rng.random() for _ in range(2))
        self.thread = rng.choice([None, dict(zip(STATES, (parts[0], parts[1] - parts[0], 1 - parts[1]), strict=True))])
        self.loaded = rng.choice([None, (rng.uniform(0, 9), rng.uniform(0, 9))])

    def recap(self, monkeypatch: pytest.MonkeyPatch) -> str | None:
        """Return the line at its end."""
        words = [0] * WORDS
        for place, phase in enumerate(PHASES):
            words[SPENT + place], words[WAITED + place] = self.spent[phase], self.waited.get(phase, 0)
        monkeypatch.setattr("gpugauge.hook.ends.CLOCKS", (lambda: 5, *CLOCKS[1:]))
        tally = SimpleNamespace(count=10, durations=9, nanoseconds=self.steps)
        recorder = SimpleNamespace(drain=lambda: None, step_tally=tally, batch_tally=tally)
        record = SimpleNamespace(words=words, phase=0, since=5, exposed=False, on_training_thread=lambda: True)
        local = SimpleNamespace(waits=lambda _, steps: None if self.local is None else steps - self.local)
        ran, queued = self.loaded or (0.0, 0.0)
        loaded = self.loaded and SimpleNamespace(cpu_seconds=ran, queued_seconds=queued, batches=10, measured=8)
        loads = SimpleNamespace(begun=self.thread and (1.0, 2.0), message=lambda declared: loaded)
        facts = {"loader_workers": "2" if loaded is None else "0"}
        if self.thread:
            known = sum(self.spent.values()) - self.spent["starting"]
            outside = (known - self.waited["training"]) / NS
            ran, queued = (self.thread[name] * outside for name in STATES[:2])
            own = self.loaded or (0.0, 0.0)
            monkeypatch.setattr(
                "gpugauge.hook.ends.thread_seconds", lambda: (1.0 + ran + own[0], 2.0 + queued + own[1])
            )
        state: Any = SimpleNamespace(recorder=recorder, record=record, local_work=local, loads=loads, facts=facts)
        return recap(state)

    def families(self, *, exposed: bool) -> list[Family]:
        """Return what the daemon exports of it; `exposed` is whether it uses a GPU."""
        found: dict[str, dict[tuple[str, ...], Any]] = {
            "torch_process_info": {("p", *("",) * (len(ROWS["torch_process_info"].labels) - 1)): 1.0},
            "torch_phase_seconds_total": {("p", phase): ns / NS for phase, ns in self.spent.items()},
            "torch_data_wait_seconds_total": {("p", phase): ns / NS for phase, ns in self.waited.items() if ns},
            "torch_step_duration_seconds": {("p",): HistogramValue((10,), self.steps / NS)},
            "torch_thread_seconds_total": {
                ("p", "training", state): share * self.spent["training"] / NS
                for state, share in (self.thread or {}).items()
            },
            "torch_local_work_seconds_total": {("p",): self.local / NS} if self.local is not None else {},
        }
        if self.loaded:
            found |= {
                "torch_loader_info": {("p", "0", *("",) * (len(ROWS["torch_loader_info"].labels) - 2)): 1.0},
                "torch_loader_batches_total": {("p",): 10.0},
                "torch_loader_measured_batches_total": {("p",): 8.0},
                "torch_loader_seconds_total": {("p", "runqueue"): self.loaded[1]},
            }
        if exposed:
            found["torch_data_wait_exposed_seconds_total"] = {("p",): self.waited["training"] / NS}
        return [Family(ROWS[name], tuple(series.items())) for name, series in found.items()]


def in_views(families: Sequence[Family]) -> str:
    """Return the shares as page and terminal state them."""
    window = Window()
    window.add(node_of([Section("training", tuple(families))], monotonic=0.0))
    return sentence(*step_shares(window, "p"))


def in_report(families: Sequence[Family]) -> str:
    """Return the shares as a report states them, from the same series."""
    series = [
        Series({"__name__": name, **dict(labels)}, [(60.0, value)])
        for _, (name, labels), value in every_series(families, {"p"})
    ]
    return sentence(*shares_of([Facts(series, 0.0)]))


@seeds(range(50))
def test_the_line_at_the_end_and_the_daemon_state_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(random.Random(seed))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    line = drawn.recap(monkeypatch)
    assert line is not None

    _, _, stated = line.partition("; of ")
    expected = in_views(drawn.families(exposed=False))
    assert stated.partition(": ")[2].removesuffix(", waits for data not known") == expected
    # Against the drawn numbers themselves: the start-up is no part of the whole, the queue for a CPU no wait for data.
    whole = sum(drawn.spent.values()) - drawn.spent["starting"]
    share = drawn.waited["training"] / whole
    if drawn.loaded and " waiting for a CPU" in line:
        share = max(0.0, share - drawn.loaded[1] * 10 / 8 * NS / whole)
    assert (f"{100 * round(share, 4):.0f} % waiting for data" in line) == (share >= 0.005)


@seeds(range(50))
def test_the_report_states_the_shares_of_the_views(seed: int) -> None:
    drawn, exposed = Drawn(random.Random(seed)), bool(seed % 4 == 0)
    families = drawn.families(exposed=exposed)

    assert in_report(families) == in_views(families)
