"""The worker process with a simulated library, see `driver.worker`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpugauge.driver import worker
from gpugauge.driver.codes import DriverFacts
from gpugauge.driver.nvidia.nvml import Nvml, use_library
from gpugauge.driver.worker import Joined
from gpugauge.simulator.device.presets import PRESETS
from gpugauge.simulator.device.world import World
from gpugauge.simulator.nvml.library import Library


class SimulatedNvml(Nvml):
    """The NVML backend with a simulated library; its clock returns the monotonic seconds of the simulation."""

    def open(self, *, simulate: Mapping[str, Any] | None = None) -> None:
        """Install the simulation, as `Scenario.simulation` returns it, and open it. Raises DriverError or KeyError."""
        use_library(Library(World(simulate or {}, self._clock)))
        super().open()


class SimulatedDrivers(Joined):
    """The backends of the vendors that a scenario has GPUs of, NVIDIA's if it has none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nvml = SimulatedNvml(clock)
        super().__init__((self._nvml,), self._nvml.calls)

    def open(self, **options: Any) -> None:
        """Open the backends of a simulation. Raises DriverError or KeyError."""
        amd = {"amd" in PRESETS[gpu["model"]] for gpu in options["simulate"]["scenario"]["gpus"]}
        self._backends = () if amd == {True} else (self._nvml,)
        if True in amd:
            from gpugauge.simulator.amd.backend import SimulatedAmd  # noqa: PLC0415  (not needed for most scenarios)

            other = SimulatedAmd(self._clock)
            other.calls = self.calls
            self._backends += (other,)
        super().open(**options)

    def facts(self) -> DriverFacts:
        """Return the facts, marked as simulated."""
        return super().facts()._replace(simulated=True)


def service(clock: Callable[[], float] = time.monotonic) -> worker.Service:
    """Return the service of a simulated worker, for use without a process."""
    return worker.Service(SimulatedDrivers(clock), clock)


def main() -> None:
    """Serve the daemon that started this process, and end the process."""
    worker.give_up_privileges()
    sys.exit(worker.main(sys.argv[1:], SimulatedDrivers()))
