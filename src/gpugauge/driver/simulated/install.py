"""Puts a simulated library in the place of the real one, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpugauge.driver.nvml import use_library
from gpugauge.driver.simulated.library import Library
from gpugauge.driver.simulated.replay import Replay
from gpugauge.driver.simulated.world import World


def install(simulation: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> Library | Replay:
    """Make pynvml talk to the simulation, made by `Scenario.simulation`, and return the library."""
    recording = simulation["scenario"]["replay"]
    library = Replay(Path(recording)) if recording else Library(World(simulation, clock))
    use_library(library)
    return library
