"""Training loop of qa.bench.hook: `python -m qa.bench.hook_loop WHAT WIDTH BATCH STEPS RUNS COMPILER`, under the hook.

It prints JSON. WHAT is `cost` (see qa.bench.hook.measure) or `parts` (see qa.bench.hook.parts). A COMPILER of `-`
compiles nothing. Width 0 is a step that only calls the hook; width 1 has the smallest backward pass and optimizer.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator

from gpugauge.hook import install
from gpugauge.hook import record as phases
from gpugauge.hook.observer import Observer
from gpugauge.wire.record import BATCHES, LAST_STEP, SAMPLES, STEPS, TOKENS, WAITED

clock = time.perf_counter_ns
Step = Callable[..., None]
Batch = Callable[[Any], Any]


def observer() -> Observer:
    """Return the observer of this process."""
    assert install.observer, "the program runs without the hook"
    return install.observer


class Ready(Dataset[Any]):  # type: ignore[misc]  # torch is Any to mypy
    """Batches that are ready, of a size that the hook can know."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __getitems__(self, _: list[int]) -> Any:
        """Return a batch."""
        return self.batch


class Nothing(torch.optim.Optimizer):  # type: ignore[misc]  # torch is Any to mypy
    """An optimizer that does nothing."""

    def step(self, _closure: Any = None) -> None:
        """Do nothing."""


class Loop:
    """A loop of steps, and the functions of the hook in it."""

    def __init__(self, width: int, batch: int, steps: int, compiler: str) -> None:
        torch.set_num_threads(1)
        self.width, self.steps = width, steps
        linear, size = torch.nn.Linear, width or 1
        model = (
            linear(1, 1) if width < 2 else torch.nn.Sequential(linear(size, size), torch.nn.ReLU(), linear(size, size))
        )
        self.call: Any = torch.compile(model, backend=compiler) if compiler != "-" else model
        indices = list(range(batch or 1))
        self.loader = DataLoader(
            Ready(torch.randn(len(indices), size)),
            batch_size=len(indices),
            sampler=list(indices) * steps,
            collate_fn=lambda data: data,
        )
        made = torch.optim.SGD(model.parameters(), lr=1e-3) if width else Nothing(model.parameters(), {})
        self.optimizer: torch.optim.Optimizer = made
        ((self.key, self.after_step),) = hooks.items()
        self.next_batch: Batch = Iterator.__next__
        names = self.next_batch.__code__.co_freevars
        self._cell: Any = self.next_batch.__closure__[names.index("wait")]
        self.wait: Batch = self._cell.cell_contents

    def run(self) -> float:
        """Run all steps; return the median of their µs."""
        took = []
        iterator = iter(self.loader)
        for _ in range(self.steps):
            start = clock()
            data = next(iterator)
            if self.width:
                self.optimizer.zero_grad()
                self.call(data).square().mean().backward()
            self.optimizer.step()
            took.append(clock() - start)
        return statistics.median(took) / 1e3

    def use(self, step: Step | None, batch: Batch) -> None:
        """Call these functions at each step and at each batch."""
        hooks.clear()
        if step:
            hooks[self.key] = step
        Iterator.__next__ = batch

    def inside(self, step: Step, batch: Callable[[Any, Batch], Any]) -> tuple[float, float, float]:
        """Run with these functions; return the median µs in them at a batch, at a step, and at both. `batch` gets the
        iterator and the function that waits, whose time does not count.
        """
        at_step: list[float] = []
        at_batch: list[float] = []
        waited = 0

        def timed_wait(iterator: Any) -> Any:
            nonlocal waited
            start = clock()
            try:
                return self.wait(iterator)
            finally:
                waited = clock() - start

        def timed_batch(iterator: Any) -> Any:
            start = clock()
            found = batch(iterator, timed_wait)
            at_batch.append((clock() - start - waited) / 1e3)
            return found

        def timed_step(*arguments: Any) -> None:
            start = clock()
            step(*arguments)
            at_step.append((clock() - start) / 1e3)

        self._cell.cell_contents = timed_wait
        self.use(timed_step, timed_batch)
        self.run()
        self._cell.cell_contents = self.wait
        self.use(self.after_step, self.next_batch)
        both = list(map(sum, zip(at_batch, at_step, strict=True)))
        return statistics.median(at_batch), statistics.median(at_step), statistics.median(both)

    def hook(self) -> tuple[float, float, float]:
        """Return the µs inside of the hook's own functions."""
        return self.inside(self.after_step, lambda iterator, _: self.next_batch(iterator))

    def nothing(self) -> tuple[float, float, float]:
        """Return the µs inside of functions that do nothing."""
        return self.inside(lambda *_: None, lambda iterator, wait: wait(iterator))


def cost(loop: Loop, runs: int) -> list[Any]:
    """Return µs: medians of the runs without and with the hook, of its functions, of empty ones, and publications."""
    loop.run()
    loop.use(None, loop.wait)
    loop.run()
    without, watched = [], []
    for _ in range(runs):
        loop.use(None, loop.wait)
        without.append(loop.run())
        loop.use(loop.after_step, loop.next_batch)
        watched.append(loop.run())
    turns = [(loop.hook(), loop.nothing()) for _ in range(runs // 2)]
    ours = [statistics.median(values) for values in zip(*(hook for hook, _ in turns), strict=True)]
    published = []
    for _ in range(5):
        time.sleep(0.2)
        start = clock()
        observer().publish(start)
        published.append((clock() - start) / 1e3)
    return [without, watched, ours, statistics.median(nothing[2] for _, nothing in turns), published]


def parts(loop: Loop, runs: int) -> dict[str, float]:
    """Return the µs at a batch and a step of functions that do more and more of what the hook does, and of the hook."""
    track, words, ends = observer().record, observer().state.record.words, deque[int](maxlen=100)
    enabled, compiling, work = torch.is_grad_enabled, torch.compiler.is_compiling, observer().recorder.work

    def clocks(iterator: Any, wait: Batch) -> Any:
        clock()
        found = wait(iterator)
        clock()
        enabled()
        return found

    def switches(iterator: Any, wait: Batch) -> Any:
        track.switch(phases.LOADING, clock())
        found = wait(iterator)
        track.end_wait(phases.TRAINING if enabled() else phases.EVALUATING, phases.TRAINING, clock())
        return found

    def counts(iterator: Any, wait: Batch) -> Any:
        found = switches(iterator, wait)
        words[BATCHES] += 0
        words[WAITED] += 0
        return found

    def clock_step(*_: Any) -> None:
        compiling()
        clock()

    def counted_step(*_: Any) -> None:
        compiling()
        now = clock()
        ends.append(now)
        words[STEPS] += 0
        words[LAST_STEP] = now
        words[SAMPLES], words[TOKENS] = work.samples, work.tokens

    steps: dict[str, tuple[Step, Callable[[Any, Batch], Any]]] = {
        "two empty functions": (lambda *_: None, lambda iterator, wait: wait(iterator)),
        "clocks, gradient mode, compiling": (clock_step, clocks),
        "two changes of the phase": (clock_step, switches),
        "counts in the shared record": (counted_step, counts),
    }
    found: dict[str, list[float]] = {}
    for _ in range(runs // 2):
        for name, functions in steps.items():
            found.setdefault(name, []).append(loop.inside(*functions)[2])
        found.setdefault("the hook", []).append(loop.hook()[2])
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    what, width, batch, steps, runs, compiler = sys.argv[1:7]
    loop = Loop(int(width), int(batch), int(steps), compiler)
    print(json.dumps(cost(loop, int(runs)) if what == "cost" else parts(loop, int(runs))))
    assert observer().client.connected, "the listener rejected the hook"
    assert observer().errors == 0


if __name__ == "__main__":
    main()
