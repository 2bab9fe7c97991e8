"""Scenarios for tests, written as YAML like that of users."""

from __future__ import annotations

from typing import Any

from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library
from gpugauge.simulator.scenario.load import Scenario, parse_scenario


def scenario(text: str) -> Scenario:
    return parse_scenario(f"description: a test\n{text}", "test.yaml", "test")


class Clock:
    """Seconds of the scenario, set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def world(self, text: str) -> World:
        simulation: dict[str, Any] = scenario(text).simulation()
        simulation["start"]["monotonic"] = 0.0  # from another time on, differences would be rounded
        return World(simulation, lambda: self.now)


def opened(text: str, clock: Clock | None = None) -> Nvml:
    """Open the driver of a scenario; without a clock, its time is second 0."""
    clock = clock or Clock()
    use_library(Library(clock.world(text)))
    nvml = Nvml(lambda: clock.now)
    nvml.open()
    return nvml
