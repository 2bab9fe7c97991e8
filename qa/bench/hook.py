"""Cost of the hook in microseconds per training step: the same loop with and without it, in alternating runs.

It needs torch and uses the CPU. A step takes a batch that is already loaded, and ends with the optimizer's step. The
runs alternate within one process, because two processes differ by more than the cost of the hook. "added" is the median
difference of neighbouring runs, "spread" the median distance from it. "inside" is the median time of the hook's own
code in the same steps, which a noisy machine disturbs less: at the batch, at the optimizer's step, and at both.
"nothing" is the same measurement for functions that do nothing. The target applies to both, less nothing. "a
publication" happens once a second. The second table has functions that do more and more of what the hook does.
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

from gpugauge.hook import launch
from gpugauge.sessions.listener import Sessions
from qa.bench import figures
from qa.bench.report import report

# Width of the model (0: only the calls of the hook), batch, steps in a run, pairs of runs, whether it is compiled.
LOADS = {
    "empty": (0, 0, 2000, 20, False),
    "tiny, about 0.1 ms": (1, 1, 1000, 20, False),
    "small, about 0.3 ms": (64, 16, 1000, 20, False),
    "small, about 1 ms": (288, 64, 100, 20, False),
    "small, compiled": (288, 64, 100, 20, True),
    "larger, about 10 ms": (640, 256, 10, 16, False),
    "larger, compiled": (640, 256, 10, 16, True),
}
_IN_PARTS = ("empty", "tiny, about 0.1 ms", "small, about 1 ms", "larger, about 10 ms")


def run(socket: str, what: str, *arguments: int | str) -> Any:
    """Return what qa.bench.hook_loop prints."""
    environ = {**os.environ, "GPUGAUGE_HOOK": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "qa.bench.hook_loop", what, *map(str, arguments)]
    return json.loads(subprocess.check_output(command, env=launch.environment(environ, socket), text=True))


def measure(socket: str, *arguments: int | str) -> dict[str, Any]:
    """Return the µs per step without and with the hook, the difference, and its parts."""
    without, watched, (batch, step, both), nothing, published = run(socket, "cost", *arguments)
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
    loads = {name: (*load[:4], backend if load[4] else "-") for name, load in LOADS.items()}
    with tempfile.TemporaryDirectory() as directory:
        listener = Sessions(f"{directory}/hook.sock")
        listener.start()
        socket = str(listener.path)
        rows = [{"µs a step": name, **measure(socket, *load)} for name, load in loads.items()]
        made = {name: run(socket, "parts", *loads[name]) for name in _IN_PARTS}
        listener.stop()
    title = "The hook: training steps with and without it, in alternating runs"
    took = [row["both, less nothing"] for row in rows]
    found = {"least": f"{min(took):.1f}", "most": f"{max(took):.0f}"}
    found["publication"] = f"{max(row['a publication'] for row in rows):.0f}"
    report(title, rows, "python -m qa.bench.hook", [f"Compiled by {backend}."], figures=found)
    table = [{"µs a step": part} | {load: of[part] for load, of in made.items()} for part in made[_IN_PARTS[0]]]
    report("The hook in parts: each row does also what the rows above it do", table, "python -m qa.bench.hook")


if __name__ == "__main__":
    figures.run("hook", main)
