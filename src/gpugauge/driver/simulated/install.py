"""Puts a simulated library in the place of the real one, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpugauge.driver.nvml import use_library
from gpugauge.driver.simulated.library import Library
from gpugauge.driver.simulated.world import World


def install(simulation: Mapping[str, Any]) -> Library:
    """Make pynvml talk to the simulation, made by `Scenario.simulation`, and return the library."""
    library = Library(World(simulation))
    use_library(library)
    return library
