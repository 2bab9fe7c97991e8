"""Private memory that the simulated library adds to a process with NVIDIA's binding, in MB.

`python -m qa.bench.weight SIMULATION.json`
"""

from __future__ import annotations

import json
import sys

# The baseline is the modules of a worker without the simulator, so nothing else is imported before the measurement.
from gpugauge.driver.nvidia import worker

__all__ = ["weight", "worker"]


def weight(simulation: str) -> float:
    """Return the megabytes, measured after loading, in a process of its own."""
    import subprocess  # noqa: PLC0415 - only in the parent

    done = subprocess.run([sys.executable, "-m", "qa.bench.weight", simulation], capture_output=True, check=True)
    return float(done.stdout)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - without pathlib
        text = file.read()
    before = _private()
    from gpugauge.simulator.worker import service  # noqa: PLC0415  (its memory is measured)

    service().answer({"id": 0, "op": "open", "simulate": json.loads(text)})
    print(_private() - before)


def _private() -> float:
    with open("/proc/self/smaps_rollup", encoding="utf-8") as lines:  # noqa: PTH123 - without pathlib
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


if __name__ == "__main__":
    main()
