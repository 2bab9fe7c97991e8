"""Runs nvitop-exporter on our simulated driver: `python -m bench.peer SIMULATION.json [its own arguments]`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from ctypes import c_ulonglong
from pathlib import Path
from typing import Any

from bench.ledger import kept
from gpugauge.driver.nvidia.nvml import use_library
from gpugauge.simulator.nvml.install import install

# Functions that only the peer calls, answered at once with one number: in its favour, a real GPU takes 20 ms for each
# PCIe throughput.
_ANSWERS = {
    "nvmlDeviceIsMigDeviceHandle": 0,
    "nvmlDeviceGetPcieThroughput": 1024,
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlSystemGetCudaDriverVersion": 12080,
    "nvmlSystemGetCudaDriverVersion_v2": 12080,
}
_NOT_SUPPORTED = 3


class PeerLibrary:
    """The simulated library and what else the peer needs of it, so that its page is what it is on real H100s."""

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
        """The peer asks with the time of day, which real GPUs' samples have; ours count from boot."""
        world = self._library.world
        now = world.devices[0].ring.stamp(world.now())
        since = c_ulonglong(now - (time.time_ns() // 1000 - after.value))
        code: int = self._library.nvmlDeviceGetProcessUtilization(device, array, count, since)
        return code


def _answer(argument: Any, value: int) -> int:
    argument._obj.value = value
    return 0


if __name__ == "__main__":
    use_library(kept(PeerLibrary(install(json.loads(Path(sys.argv.pop(1)).read_text())))))
    from nvitop_exporter.cli import main

    sys.exit(main())
