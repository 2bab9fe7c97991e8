"""Cost of the hook in microseconds per training step: the same loop with and without it, in alternating runs.

It needs torch and uses the CPU. A step takes a batch that is already loaded, and ends with the optimizer's step. The
runs alternate within one process, because two processes differ by more than the cost of the hook. "added" is the median
difference of neighbouring runs, "spread" the median distance from it. "inside" is the median time of the hook's own
code in the same steps, which a noisy machine disturbs less: at the batch, at the optimizer's step, and at both.
"nothing" is the same measurement for functions that do nothing. The target applies to both, less nothing. "a
publication" happens once a second.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from bench.report import report
from gpugauge.hook import launch
from gpugauge.sessions.listener import Sessions

# Width of the model (0: only the calls of the hook), batch, steps in a run, pairs of runs, whether it is compiled.
LOADS = {
    "empty": (0, 0, 2000, 20, 0),
    "small, about 100 µs": (64, 16, 1000, 20, 0),
    "small, about 1 ms": (288, 64, 100, 20, 0),
    "small, compiled": (288, 64, 100, 20, 1),
    "larger, about 10 ms": (640, 256, 10, 16, 0),
    "larger, compiled": (640, 256, 10, 16, 1),
}

# Prints µs: the medians of the steps of each run, without and with the hook; of the hook's own code at a batch, at a
# step and at both; of functions that do nothing; and the times of publications.
LOOP = """
import json, statistics, sys, time, torch
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator
from gpugauge.hook import install

width, batch, steps, runs, compiled = map(int, sys.argv[1:6])
clock = time.perf_counter_ns
torch.set_num_threads(1)
linear = torch.nn.Linear
model = torch.nn.Sequential(linear(width or 1, width or 1), torch.nn.ReLU(), linear(width or 1, width or 1))
call = torch.compile(model, backend=sys.argv[6]) if compiled else model
batches = [torch.randn(batch or 1, width or 1)] * steps

class Nothing(torch.optim.Optimizer):
    def step(self):
        pass

optimizer = torch.optim.SGD(model.parameters(), lr=1e-3) if width else Nothing(model.parameters(), {})

def run():
    took = []
    iterator = iter(DataLoader(batches, batch_size=None))
    for _ in range(steps):
        start = clock()
        data = next(iterator)
        if width:
            optimizer.zero_grad()
            call(data).square().mean().backward()
        optimizer.step()
        took.append(clock() - start)
    return statistics.median(took) / 1e3

((key, after_step),) = hooks.items()
next_batch = Iterator.__next__
cell = next_batch.__closure__[next_batch.__code__.co_freevars.index("wait")]
wait = cell.cell_contents

def hooked(step, batch):
    hooks.clear()
    if step:
        hooks[key] = step
    Iterator.__next__ = batch

run()
hooked(None, wait)
run()
without, watched = [], []
for _ in range(runs):
    hooked(None, wait)
    without.append(run())
    hooked(after_step, next_batch)
    watched.append(run())

class Inside:
    def __init__(self, step, batch):
        self.step, self.batch = step, batch
        self.at_step, self.at_batch, self.waited = [], [], 0
    def timed_step(self, *arguments):
        start = clock()
        self.step(*arguments)
        self.at_step.append((clock() - start) / 1e3)
    def timed_wait(self, iterator):
        start = clock()
        try:
            return wait(iterator)
        finally:
            self.waited = clock() - start
    def run(self):
        def timed_batch(iterator):
            start = clock()
            batch = self.batch(iterator)
            self.at_batch.append((clock() - start - self.waited) / 1e3)
            return batch
        cell.cell_contents = self.timed_wait
        hooked(self.timed_step, timed_batch)
        run()
        cell.cell_contents = wait
    def figures(self):
        both = map(sum, zip(self.at_batch, self.at_step))
        return list(map(statistics.median, (self.at_batch, self.at_step, both)))

ours = Inside(after_step, next_batch)
nothing = Inside(lambda *_: None, lambda iterator: nothing.timed_wait(iterator))
for _ in range(runs // 2):
    ours.run()
    nothing.run()
hooked(after_step, next_batch)
published = []
for _ in range(5):
    time.sleep(0.2)
    start = clock()
    install.observer.publish(start)
    published.append((clock() - start) / 1e3)
assert install.observer.client.connected, "the listener rejected the hook"
assert install.observer.errors == 0
print(json.dumps([without, watched, ours.figures(), nothing.figures()[2], published]))
"""


def measure(socket: str, *arguments: int | str) -> dict[str, Any]:
    """Return the µs per step without and with the hook, the difference, and its parts."""
    environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", LOOP, *map(str, arguments)]
    environ = launch.environment(environ, socket)
    without, watched, (batch, step, both), nothing, published = json.loads(
        subprocess.check_output(command, env=environ, text=True)
    )
    added = [b - a for a, b in zip(without, watched, strict=True)]
    return {
        "without": statistics.median(without),
        "with": statistics.median(watched),
        "added": statistics.median(added),
        "spread": statistics.median(abs(value - statistics.median(added)) for value in added),
        "inside: batch": batch,
        "inside: step": step,
        "inside: both": both,
        "nothing": nothing,
        "both, less nothing": both - nothing,
        "a publication": statistics.median(published),
    }


def main() -> None:
    # Without a C++ compiler no code is generated; the graphs are the same.
    backend = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
    with tempfile.TemporaryDirectory() as directory:
        listener = Sessions(f"{directory}/hook.sock")
        listener.start()
        rows = [{"µs a step": name, **measure(str(listener.path), *load, backend)} for name, load in LOADS.items()]
        listener.stop()
    title = "The hook: training steps with and without it, in alternating runs"
    report(title, rows, "python -m bench.hook", [f"Compiled by {backend}."])


if __name__ == "__main__":
    main()
