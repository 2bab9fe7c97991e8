"""Drawn machines on which no GPU is watched: trainings on the CPU come first, and what is no fault is not called so."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.driver.vendors import NO_GPU
from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.table import table
from qa.worlds.scraped import snapshot_of

NOW = 1.7e9
_REASONS = ("library_not_found", "driver_not_loaded", "gpu_not_found", "timeout", "off", "starting", "code_77")


@dataclass
class Machine:
    """`waits` are the shares of the trainings, None where it is not known; `early` those with the hook for 9 s."""

    reason: str
    has_gpu: bool
    waits: list[float | None]
    early: list[bool]

    @property
    def faulty(self) -> bool:
        """Whether the driver must be mended."""
        at_home = self.reason in {"library_not_found", "driver_not_loaded", "gpu_not_found"}
        return self.reason not in {"off", "starting"} and (self.has_gpu or not at_home)

    @property
    def starved(self) -> list[int]:
        """The trainings that wait for data half of their time."""
        return [n for n, share in enumerate(self.waits) if share is not None and share >= 0.5 and not self.early[n]]

    def snapshot(self, at: float = 0.0) -> Snapshot:
        there = [n for n, early in enumerate(self.early) if at >= 100 - (9 if early else 60)]
        labels = [{"process": f"p{n}"} for n in there]
        known = [(n, share) for n, share in enumerate(self.waits) if n in there and share is not None]
        shares = [({"process": f"p{n}", "part": "data"}, share) for n, share in known]
        return snapshot_of(
            NOW + at - 100,
            at,
            (
                Section(
                    "all",
                    (
                        family("gpugauge_driver_up", ({"reason": self.reason}, 0)),
                        family("torch_process_info", *(({**one, "pid": one["process"][1:]}, 1) for one in labels)),
                        family(
                            "gpu_process_host_info",
                            *(({**p, "workload_command": f"fit{p['process']}"}, 1) for p in labels),
                        ),
                        family("training_state", *(({**one, "state": "training_on_cpu"}, 1) for one in labels)),
                        family("training_step_share_ratio", *shares),
                        family("torch_loader_info", *(({**one, "workers": "0"}, 1) for one in labels)),
                        family("training_start_timestamp_seconds", *((one, NOW - 60) for one in labels)),
                    ),
                ),
            ),
        )


def draw(seed: int) -> Machine:
    dice = random.Random(seed)
    trainings = dice.choice((0, 1, 1, 2, 5))
    waits = [dice.choice((None, 0.02, 0.3, 0.5, 0.99)) for _ in range(trainings)]
    return Machine(dice.choice(_REASONS), dice.random() < 0.5, waits, [dice.random() < 0.3 for _ in waits])


@seeds(range(80))
def test_a_machine_without_a_watched_gpu(seed: int) -> None:
    machine, history = draw(seed), History()
    for at in range(0, 101, 5):
        history.feed(machine.snapshot(at))
    facts = status(machine.snapshot(100), history, lambda: machine.has_gpu)
    answer, starved = facts["answer"].lower(), machine.starved

    problems = {p["kind"]: p for p in facts["problems"]}
    assert problems.keys() == {*(["driver"] if machine.faulty else []), *(["waits"] if starved else [])}
    assert [p["subject"] for p in facts["problems"] if p["kind"] == "waits"] != [] or not starved
    for problem in facts["problems"]:
        assert machine.reason == "code_77" or machine.reason not in problem["text"]  # a label, not a word for people
        if problem["kind"] == "waits":
            assert problem["runbook"] == "TrainingLimitedByDataLoading"
            assert (problem["grave"], "num_workers" in problem["advice"], "pinned" in problem["advice"]) == (
                False,
                True,
                False,
            )
    neutral = not machine.faulty and machine.reason not in {"off", "starting"}
    assert (NO_GPU.lower() in answer) == neutral
    if starved and neutral:
        assert answer.index("waits for data") < answer.index(NO_GPU.lower())
    well = [n for n in range(len(machine.waits)) if n not in starved and not machine.early[n]]
    level = "bad" if machine.faulty else "poor" if starved else "none" if any(machine.early) or not well else "good"
    assert facts["level"] == level
    others = len(machine.waits) - len(starved)
    words = f"{others} {'other ' if starved else ''}training{'s' if others > 1 else ''} on the cpu"
    assert (words in answer) == bool(others)
    early = sum(machine.early)
    assert (f"on the cpu, {f'{early} of them ' if early < others else ''}not judged yet" in answer) == bool(early)
    shown = {p["process"]: p for p in facts["without_gpu"]}
    assert {int(label[1:]): p["level"] for label, p in shown.items()} == {
        n: "none" if machine.early[n] else "poor" if n in starved else "good" for n in range(len(machine.waits))
    }
    # The start of the training stands for that of the process.
    assert all(p["started"] == NOW - 60 for p in shown.values())
    assert table(decoded(Status, facts), False, NOW, 80).count("waits for data ") >= len(starved)
