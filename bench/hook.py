"""Microseconds a training step that the hook costs: the same loop with and without it, in alternating runs.

`python bench/hook.py [--json] [--runs N]` needs torch and uses the CPU. It reports medians over the runs. What the hook
adds to a real model drowns in noise on a busy machine, and the spread then says so; an empty step shows it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from gpugauge import launch
from gpugauge.sessions import Sessions

MODELS = {"small (about 1 ms)": (288, 64, 2000), "larger (about 10 ms)": (640, 256, 300)}

# Warms up, then prints the median time of a step; the median leaves out what other programs took.
LOOP = """
import statistics, sys, time, torch
width, batch, steps = map(int, sys.argv[1:])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(batch, width)
took = []
for step in range(steps + steps // 10):
    start = time.perf_counter_ns()
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    took.append(time.perf_counter_ns() - start)
took = took[steps // 10 :]
print(statistics.median(took) / 1e3, sum(took) / len(took) / 1e3)
"""

# The hook alone: a step that does nothing but call the hooks, publications included.
BARE = """
import sys, time, torch
class Nothing(torch.optim.Optimizer):
    def step(self):
        pass
optimizer = Nothing([torch.nn.Parameter(torch.ones(8))], {})
for step in range(1000):
    optimizer.step()
steps = 300_000
start = time.perf_counter_ns()
for step in range(steps):
    optimizer.step()
took = (time.perf_counter_ns() - start) / steps / 1e3
print(took, took)
"""


def measure(program: str, socket: str, watched: bool, *arguments: int) -> tuple[float, float]:
    """Return the median and the mean of a step in µs."""
    environ = {**os.environ, "GPUGAUGE_HOOK": str(int(watched)), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    output = subprocess.run(
        command, env=launch.environment(environ, socket), capture_output=True, text=True, check=True
    ).stdout
    median, mean = map(float, output.split())
    return median, mean


def compare(program: str, socket: str, runs: int, *arguments: int) -> dict[str, float]:
    """Return µs a step without and with the hook, what it adds, and the standard deviation of runs without it."""
    pairs = [
        (measure(program, socket, False, *arguments)[0], measure(program, socket, True, *arguments)[0])
        for _ in range(runs)
    ]
    without, watched = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(b - a for a, b in pairs)
    return {
        "without_us": without,
        "with_us": watched,
        "added_us": added,
        "added_percent": 100 * added / without,
        "spread_us": statistics.pstdev([a for a, _ in pairs]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--runs", type=int, default=5, help="runs with and without the hook, each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        listener = Sessions(f"{directory}/hook.sock")
        listener.start()
        results = {"an empty step": compare(BARE, str(listener.path), options.runs)}
        for name, model in MODELS.items():
            results[name] = compare(LOOP, str(listener.path), options.runs, *model)
        listener.stop()
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'step':24}{'without':>12}{'with':>12}{'added':>12}{'':>9}{'spread':>12}")
    for name, r in results.items():
        print(
            f"{name:24}{r['without_us']:>9.1f} µs{r['with_us']:>9.1f} µs{r['added_us']:>9.2f} µs"
            f"{r['added_percent']:>8.2f}%{r['spread_us']:>9.1f} µs"
        )


if __name__ == "__main__":
    main()
