"""The worker of `qa.bench.ours`: NVIDIA's backend with the simulated library for libnvidia-ml. With BENCH_LEDGER
the library is wrapped in a Ledger; with BENCH_CLOCK the energy of its GPUs is the time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpugauge.driver import worker
from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library
from gpugauge.simulator.worker import SimulatedNvml

SIMULATION = "BENCH_SIMULATION"  # the environment variable with the path of the simulation


class _EnergyClock:
    """A library in which the energy of each GPU, in millijoules, is the monotonic time in milliseconds, so that the age
    of a value in a scrape can be measured.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, function: str) -> Callable[..., int]:
        answer: Callable[..., int] = getattr(self._library, function)
        return _energy if function == "nvmlDeviceGetTotalEnergyConsumption" else answer


def _energy(_: Any, value: Any) -> int:
    value._obj.value = round(time.monotonic() * 1000)
    return 0


class _SimulatedNvml(SimulatedNvml):
    def open(self, *, simulate: Mapping[str, Any] | None = None, **_paths: str) -> None:
        with open(os.environ[SIMULATION], encoding="utf-8") as file:  # noqa: PTH123  (pathlib adds to the memory)
            library: Any = Library(World(json.load(file)))
        if "BENCH_CLOCK" in os.environ:
            library = _EnergyClock(library)
        if "BENCH_LEDGER" in os.environ:
            from qa.bench.ledger import kept  # noqa: PLC0415  (what it loads adds to the memory)

            library = kept(library)
        use_library(library)
        Nvml.open(self)


def main() -> None:
    """Serve the daemon that started this process, and end the process."""
    worker.give_up_privileges()
    sys.exit(worker.main(sys.argv[1:], _SimulatedNvml()))
