"""A training and its loader as a sequence of events: workers that deliver in order, and CPUs that all of them share.

Written from the documentation of DataLoader, without the code under test.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, replace

PREFETCH = 2
CPU, SLEEP, STORAGE, BATCH = "cpu", "sleep", "storage", "batch"
_EPSILON = 1e-9


@dataclass(frozen=True)
class Pipeline:
    """Seconds of a batch: what its loading needs of a CPU and of other waits, and the training's own step, of which
    the share `busy` needs a CPU. `servers` reads of the storage run at a time. One of the workers can be slower.
    """

    workers: int
    own: float
    cpu: float = 0.0
    sleep: float = 0.0
    storage: float = 0.0
    busy: float = 0.0
    cpus: float = 64.0
    servers: int = 1000
    jitter: float = 0.0
    slow: float = 1.0  # factor of the durations of the first worker
    seed: int = 0

    def run(self, batches: int = 150) -> Figures:
        """Return the means of a step."""
        return _Run(self, batches).figures()

    def with_workers(self, workers: int) -> Pipeline:
        return replace(self, workers=workers)


@dataclass(frozen=True)
class Figures:
    """Seconds of a step, of the wait for its batch, and of the loading of a batch by part; `delayed` is the time for
    which the training waited for a CPU outside of its loading.
    """

    step: float
    wait: float
    cpu: float
    queued: float
    sleep: float
    storage: float
    delayed: float
    slowest: float | None


Need = tuple[str, float]


class _Run:
    def __init__(self, pipeline: Pipeline, batches: int) -> None:
        self.p, self.batches = pipeline, batches
        self.random = random.Random(pipeline.seed)
        self.now = 0.0
        self.ready: set[int] = set()
        self.taken = 0
        self.waited = self.delayed = 0.0
        self.spent = {CPU: 0.0, "queued": 0.0, SLEEP: 0.0, STORAGE: 0.0}
        self.loaded = 0
        self.by_worker = [[0.0, 0] for _ in range(pipeline.workers)]

    def load(self, worker: int) -> Generator[Need, None, None]:
        factor = (1.0 + self.p.jitter * (self.random.random() - 0.5)) * (self.p.slow if worker == 0 else 1.0)
        busy = 0.0
        for kind, seconds in ((STORAGE, self.p.storage), (SLEEP, self.p.sleep), (CPU, self.p.cpu)):
            if seconds:
                begin = self.now
                yield kind, seconds * factor
                work = seconds * factor if kind == CPU else self.now - begin
                self.spent[kind] += work
                self.spent["queued"] += self.now - begin - work
                busy += work
        self.loaded += 1
        if self.p.workers:
            self.by_worker[worker][0] += busy
            self.by_worker[worker][1] += 1

    def worker(self, number: int) -> Generator[Need, None, None]:
        for batch in range(number, self.batches, self.p.workers):
            while batch >= self.taken + PREFETCH * self.p.workers:
                yield BATCH, 0.0
            yield from self.load(number)
            self.ready.add(batch)

    def training(self) -> Generator[Need, None, None]:
        for batch in range(self.batches):
            begin = self.now
            if self.p.workers:
                while batch not in self.ready:
                    yield BATCH, 0.0
            else:
                yield from self.load(1)
            self.waited += self.now - begin
            self.taken += 1
            begin = self.now
            yield CPU, self.p.own * self.p.busy
            self.delayed += self.now - begin - self.p.own * self.p.busy
            yield SLEEP, self.p.own * (1.0 - self.p.busy)

    def figures(self) -> Figures:
        training = self.training()
        actors = {training: [*next(training)]}
        for number in range(self.p.workers):
            worker = self.worker(number)
            actors[worker] = [*next(worker)]
        while training in actors:
            self.advance(actors)
        step, count = self.now / self.batches, max(1, self.loaded)
        means = sorted(busy / done for busy, done in self.by_worker if done >= 10)
        slowest = means[len(means[:-1]) // 2] / means[-1] if len(means) > 1 else None
        parts = {name: seconds / count for name, seconds in self.spent.items()}
        return Figures(
            step=step,
            wait=self.waited / self.batches,
            cpu=parts[CPU],
            queued=parts["queued"],
            sleep=parts[SLEEP],
            storage=parts[STORAGE],
            delayed=self.delayed / self.batches,
            slowest=slowest,
        )

    def advance(self, actors: dict[Generator[Need, None, None], list]) -> None:  # type: ignore[type-arg]  # of any kind of actor
        """Let time pass until the next actor has what it needs."""
        on_cpu = sum(kind == CPU for kind, _ in actors.values())
        reading = sum(kind == STORAGE for kind, _ in actors.values())
        rates = {CPU: min(1.0, self.p.cpus / max(1, on_cpu)), SLEEP: 1.0, BATCH: 1.0}
        rates[STORAGE] = min(1.0, self.p.servers / max(1, reading))
        passing = min((left / rates[kind] for kind, left in actors.values() if kind != BATCH), default=0.0)
        self.now += passing
        done = []
        for actor, left in actors.items():
            left[1] -= passing * rates[left[0]]
            if left[0] == BATCH or left[1] <= _EPSILON:
                done.append(actor)
        for actor in done:
            need = next(actor, None)
            if need is None:
                del actors[actor]
            else:
                actors[actor] = [*need]
