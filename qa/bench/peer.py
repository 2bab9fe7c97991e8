"""nvitop-exporter on our simulated driver: `python -m qa.bench.peer SIMULATION.json [arguments of nvitop-exporter]`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from ctypes import c_ulonglong
from pathlib import Path
from typing import Any

from gpugauge.driver.nvidia.nvml import use_library
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library
from qa.bench.ledger import kept

# Functions that only nvitop-exporter calls. They return a constant at once, which is in its favour: on a real GPU each
# call of nvmlDeviceGetPcieThroughput takes 20 ms.
_ANSWERS = {
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetPcieThroughput": 1024,
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlSystemGetCudaDriverVersion": 12080,
    "nvmlSystemGetCudaDriverVersion_v2": 12080,
}
_NOT_SUPPORTED = 3


class PeerLibrary:
    """The simulated library with the further functions that nvitop-exporter needs to show what it shows on an H100."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, function: str) -> Callable[..., int]:
        if function == "nvmlDeviceGetProcessUtilization":
            return self._process_utilization
        if function == "nvmlDeviceGetFanSpeed":
            return lambda *_: _NOT_SUPPORTED
        if function in _ANSWERS:
            return lambda *arguments: _answer(arguments[-1], _ANSWERS[function])
        answer: Callable[..., int] = getattr(self._library, function)
        return answer

    def _process_utilization(self, device: Any, array: Any, count: Any, after: Any) -> int:
        """Convert `after` from Unix time, which the samples of real GPUs have, to time since boot, which ours have."""
        world = self._library.world
        now = world.devices[0].ring.stamp(world.now())
        since = c_ulonglong(now - (time.time_ns() // 1000 - after.value))
        code: int = self._library.nvmlDeviceGetProcessUtilization(device, array, count, since)
        return code


def _answer(argument: Any, value: int) -> int:
    argument._obj.value = value
    return 0


if __name__ == "__main__":
    use_library(kept(PeerLibrary(Library(World(json.loads(Path(sys.argv.pop(1)).read_text()))))))
    from nvitop_exporter.cli import main

    sys.exit(main())
