"""Nodes of any size for the benches: H100s and processes, as plain data for the simulated library.

The processes are real ones that sleep, so that reading them from /proc costs as much as on a real node.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpugauge.simulator.scenario.load import parse_scenario

_LOAD = "{{shape: square, high: {:.4f}, period: 4, duty: 0.5}}"
_MEMORY_GIB = 60  # of a GPU, shared by its processes


@contextlib.contextmanager
def node(devices: int, processes: int) -> Iterator[str]:
    """Yield the path of the simulation of `devices` H100 and `processes` in total, distributed evenly."""
    sleeping = [subprocess.Popen(["sleep", "infinity"]) for _ in range(processes)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{devices}-devices-{processes}-processes.json"
            made = parse_scenario(scenario(devices, [process.pid for process in sleeping]), path.name, path.stem)
            path.write_text(json.dumps(made.simulation()))
            yield str(path)
    finally:
        for process in sleeping:
            process.kill()
        for process in sleeping:
            process.wait()


def scenario(devices: int, pids: Sequence[int]) -> str:
    """Return the scenario's text; process i is on GPU i modulo `devices`."""
    each = max(1, -(-len(pids) // devices))
    memory, load = f"{_MEMORY_GIB / each:.3f}GiB", _LOAD.format(0.9 / each)
    lines = [f"description: for measurements; {devices} H100 with {len(pids)} processes"]
    lines += [f"gpus: {{model: h100, count: {devices}}}"]
    lines += ["processes:"] if pids else []
    lines += [
        f"  - {{pid: {pid}, gpus: [{i % devices}], memory: {memory}, load: {load}}}" for i, pid in enumerate(pids)
    ]
    return "\n".join(lines) + "\n"
