"""The time of a training thread, in drawn programs: phases, sleep, waits for a CPU, backward passes in other threads,
other pid namespaces, another thread that trains, counters that the kernel updates late. What each did is known.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.drawn import seeds

from gpugauge.sessions.threads import TrainingThread

PID, LATE = 77, 0.004  # seconds after which the kernel counts the time of a running thread
PHASES = ("starting", "loading", "training", "training", "training", "evaluating", "checkpointing", "compiling")


class Program:
    """A drawn program in a folder like /proc. `truth` has its seconds by phase and state."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root, self.now = rng, root, 1000.0
        self.inside = rng.choice((0, 70))  # the numbers of its threads in its own pid namespace are so much smaller
        self.training = PID  # number of the training thread
        self.counts: dict[int, list[float]] = {}
        self.shown: Counter[int] = Counter()  # nanoseconds
        self.start(PID, "python", 5.0)
        for number in rng.sample(range(PID + 1, PID + 99), 3):
            self.start(number, "pin memory\ntask", 1.0)
        (root / str(PID) / "task" / "9").mkdir()  # has ended since its folder was listed
        self.phases: defaultdict[str, float] = defaultdict(float)
        self.truth: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.backward: int | None = None

    def start(self, number: int, name: str, ran: float = 0.0) -> None:
        folder = self.root / str(PID) / "task" / str(number)
        folder.mkdir(parents=True)
        shown = name.replace("\n", "\\n")
        inner = f"\t{number - self.inside}" if self.inside else ""
        (folder / "status").write_text(f"Name:\t{shown}\nState:\tS\nGroups:\t \nNSpid:\t{number}{inner}\n")
        self.counts[number] = [ran, 0.25]

    def end(self, number: int) -> None:
        shutil.rmtree(self.root / str(PID) / "task" / str(number))
        del self.counts[number]

    def live(self, phase: str, seconds: float) -> None:
        """Spend some time in a phase: in the training thread, or in one of autograd while that one sleeps."""
        ran = self.rng.choice((0.0, 1.0, self.rng.random())) * seconds
        queued = self.rng.choice((0.0, 1.0, self.rng.random())) * (seconds - ran)
        place = self.backward if self.backward and phase == "training" and self.rng.random() < 0.5 else self.training
        self.counts[place][0] += ran
        self.counts[place][1] += queued
        for number in self.counts.keys() - {self.training, self.backward}:
            self.counts[number][0] += seconds * self.rng.random()  # other threads count nowhere
        self.phases[phase] += seconds
        for state, value in (("running", ran), ("runnable", queued), ("asleep", seconds - ran - queued)):
            self.truth[phase, state] += value
        self.now += seconds

    def show(self) -> None:
        """Write the counters of the threads, those of running ones late."""
        for number, (ran, queued) in self.counts.items():
            self.shown[number] = max(self.shown[number], int((ran - self.rng.choice((0.0, LATE))) * 1e9))
            path = self.root / str(PID) / "task" / str(number) / "schedstat"
            path.write_text(f"{self.shown[number]} {int(queued * 1e9)} 12\n")


@seeds(range(40))
def test_the_time_of_a_training_thread(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    program = Program(rng, tmp_path)
    found = TrainingThread(PID, tmp_path)
    program.live("starting", rng.random())
    program.show()
    found.read(program.training - program.inside, dict(program.phases), program.now)
    program.truth.clear()
    before, mixed, seen = dict(program.phases), 0.0, dict(found.seconds)
    for second in range(60):
        spent = dict(program.phases)
        asleep = program.truth["training", "asleep"]
        for _ in range(rng.choice((1, 1, 2, 3))):
            program.live(rng.choice(PHASES), rng.choice((0.05, 0.4, 1.0)))
        program.show()
        found.read(program.training - program.inside, dict(program.phases), program.now)
        others = sum(program.phases[p] - spent.get(p, 0.0) for p in program.phases if p != "training")
        mixed += min(program.truth["training", "asleep"] - asleep, others)
        assert all(new >= old for phase in seen for new, old in zip(found.seconds[phase], seen[phase], strict=True))
        seen = dict(found.seconds)
        if second == 10 and rng.random() < 0.5:
            program.start(PID + 100, "pt_autograd_0")
            program.backward = PID + 100
            # Its first backward passes are before it is found, and between two searches.
            while program.now < 1100:
                program.live("checkpointing", 1.0)
                program.show()
                found.read(program.training - program.inside, dict(program.phases), program.now)
        elif second == 40 and rng.random() < 0.2:
            if rng.random() < 0.5:
                program.end(program.training)
            program.start(PID + 200, "trainer", 3.0)
            program.training = PID + 200
            program.show()
            program.now += 60.0
            unseen = dict(found.seconds)
            found.read(program.training - program.inside, dict(program.phases), program.now)
            assert dict(found.seconds) == unseen
    states = {(phase, state): value for phase, time in found.seconds.items() for state, value in time._asdict().items()}
    for phase in found.seconds:
        total = program.phases[phase] - before.get(phase, 0.0)
        assert abs(sum(found.seconds[phase]) - total) < 1e-6, phase
    for state in ("running", "runnable", "asleep"):
        true = sum(value for (_, name), value in program.truth.items() if name == state)
        assert abs(sum(value for (_, name), value in states.items() if name == state) - true) < 0.05, state
    true = program.truth["training", "asleep"]
    assert true - mixed - 0.05 <= states.get(("training", "asleep"), 0.0) <= true + 0.05


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts no time of threads")
def test_the_threads_are_those_of_the_machine() -> None:
    found, number = TrainingThread(os.getpid()), threading.get_native_id()
    found.read(number, {"training": 0.0}, 0.0)
    found.read(number, {"training": 1.0}, 1.0)

    assert sum(found.seconds["training"]) == pytest.approx(1.0)


def test_a_process_that_cannot_be_seen_has_no_time(tmp_path: Path) -> None:
    program = Program(random.Random(0), tmp_path)
    program.show()
    found = TrainingThread(PID, tmp_path)
    for number, now in ((PID, 0.0), (0, 1.0), (PID - program.inside + 5, 2.0)):
        found.read(number, {"training": now}, now)
    assert not found.seconds
