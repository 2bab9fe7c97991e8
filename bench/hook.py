"""Microseconds a training step that the hook costs: the same loop with and without it, in alternating runs.

It needs torch and uses the CPU. The runs alternate within one process, because two processes differ by more than the
hook costs. "added" is the median difference of neighbouring runs, "spread" the median distance from it; "inside" is
the median time of the hook's own call among the same steps, which a noisy machine disturbs less; "a publication"
comes once a second, "a batch" is what the hook adds to each wait for a batch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from bench.report import report
from gpugauge import launch
from gpugauge.sessions import Sessions

# Width of the model (0: nothing but the hook's call), batch, steps in a run, pairs of runs.
LOADS = {
    "empty": (0, 0, 5000, 20),
    "small, about 1 ms": (288, 64, 200, 40),
    "larger, about 10 ms": (640, 256, 20, 20),
}

# Prints the medians of the steps of each run, without and with the hook in turn, of the hook's own calls, of
# publications, and of the waits for batches of a loader that has nothing to load, without and with the hook, in µs.
LOOP = """
import json, statistics, sys, time, torch
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
from gpugauge.hook import observer

width, batch, steps, runs = map(int, sys.argv[1:])
torch.set_num_threads(1)
linear = torch.nn.Linear
model = torch.nn.Sequential(linear(width or 1, width or 1), torch.nn.ReLU(), linear(width or 1, width or 1))
data = torch.randn(batch or 1, width or 1)

class Nothing(torch.optim.Optimizer):
    def step(self):
        pass

optimizer = torch.optim.SGD(model.parameters(), lr=1e-3) if width else Nothing(model.parameters(), {})

def run():
    took = []
    for _ in range(steps):
        start = time.perf_counter_ns()
        if width:
            optimizer.zero_grad()
            model(data).square().mean().backward()
        optimizer.step()
        took.append(time.perf_counter_ns() - start)
    return statistics.median(took) / 1e3

(ours,) = hooks.items()
run()
without, watched = [], []
for _ in range(runs):
    hooks.clear()
    without.append(run())
    hooks.update([ours])
    watched.append(run())
inside = []
def timed(*arguments, **named):
    start = time.perf_counter_ns()
    ours[1](*arguments, **named)
    inside.append((time.perf_counter_ns() - start) / 1e3)
hooks.update([(ours[0], timed)])
for _ in range(runs // 4):
    run()
hooks.update([ours])
published = []
for _ in range(5):
    time.sleep(0.2)
    start = time.perf_counter_ns()
    observer._observer.publish(start)
    published.append((time.perf_counter_ns() - start) / 1e3)
assert observer._observer.client.connected, "the listener turned the hook away"

from torch.utils.data.dataloader import _BaseDataLoaderIter as Waits
hooked = Waits.__next__
waits = {hooked.__wrapped__: [], hooked: []}
for _ in range(runs):
    for wait, took in waits.items():
        iterator = iter(torch.utils.data.DataLoader(range(1000), batch_size=None))
        for _ in range(1000):
            start = time.perf_counter_ns()
            wait(iterator)
            took.append((time.perf_counter_ns() - start) / 1e3)
figures = [without, watched, statistics.median(inside), published, [statistics.median(took) for took in waits.values()]]
print(json.dumps(figures))
"""


def measure(socket: str, *arguments: int) -> dict[str, Any]:
    """Return µs a step without and with the hook, what it adds, and of what it is made."""
    environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", LOOP, *map(str, arguments)]
    environ = launch.environment(environ, socket)
    without, watched, inside, published, (wait, hooked_wait) = json.loads(
        subprocess.check_output(command, env=environ, text=True)
    )
    added = [b - a for a, b in zip(without, watched, strict=True)]
    return {
        "without": statistics.median(without),
        "with": statistics.median(watched),
        "added": statistics.median(added),
        "spread": statistics.median(abs(value - statistics.median(added)) for value in added),
        "inside": inside,
        "a publication": statistics.median(published),
        "a batch": hooked_wait - wait,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        listener = Sessions(f"{directory}/hook.sock")
        listener.start()
        rows = [{"µs a step": name, **measure(str(listener.path), *load)} for name, load in LOADS.items()]
        listener.stop()
    report("The hook, with and without it by turns", rows, "python -m bench.hook")


if __name__ == "__main__":
    main()
