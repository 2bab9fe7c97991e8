"""Drivers that the simulator does not have: some functions are replaced."""

from __future__ import annotations

from collections.abc import Callable

from gpugauge.driver.nvidia.nvml import Nvml, used_library
from tests.simulator.build import Clock, opened


def clocked(text: str) -> tuple[Nvml, Clock]:
    """Open the driver of a scenario at its second 0; return it with its clock."""
    clock = Clock()
    return opened(text, clock), clock


class Driver:
    """The simulated library with other functions; a function that is None is not exported."""

    def __init__(self, **functions: Callable[..., int] | None) -> None:
        self._simulated, self._functions = used_library(), functions

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in self._functions:
            return getattr(self._simulated, name)  # type: ignore[no-any-return]  # of a simulated library
        function = self._functions[name]
        if function is None:
            raise AttributeError(name)
        return function
