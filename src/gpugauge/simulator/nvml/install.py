"""Installation of a simulated library in place of the real one, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gpugauge.driver.nvidia.nvml import use_library
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library


def install(simulation: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> Library:
    """Make pynvml call a simulation, made by `Scenario.simulation`; return the library."""
    library = Library(World(simulation, clock))
    use_library(library)
    return library
