"""Puts a simulated library in the place of the real one, in this process."""

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
    """Make pynvml talk to the simulation, made by `Scenario.simulation`, and return the library."""
    recording = simulation["scenario"]["replay"]
    library = _replay(recording) if recording else Library(World(simulation, clock))
    use_library(library)
    return library


def _replay(recording: str) -> Replay:
    from pathlib import Path  # noqa: PLC0415  (it loads much that a simulated machine does not need)

    from gpugauge.simulator.nvml.replay import Replay  # noqa: PLC0415  (as above)

    return Replay(Path(recording))
