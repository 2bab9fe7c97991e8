"""Installation of a simulated library in place of the real one, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpugauge.driver.nvidia.nvml import use_library
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library

if TYPE_CHECKING:
    from gpugauge.simulator.nvml.replay import Replay


def install(simulation: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> Library | Replay:
    """Make pynvml call a simulation, made by `Scenario.simulation`; return the library."""
    library: Library | Replay
    if recording := simulation["scenario"]["replay"]:
        from pathlib import Path  # noqa: PLC0415  (loads modules that other simulations do not need)

        from gpugauge.simulator.nvml.replay import Replay  # noqa: PLC0415  (likewise)

        library = Replay(Path(recording))
    else:
        library = Library(World(simulation, clock))
    use_library(library)
    return library
