"""The worker process with a simulated library, see `driver.worker`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpugauge.driver import worker
from gpugauge.driver.codes import DriverFacts
from gpugauge.driver.nvidia.nvml import Nvml
from gpugauge.simulator.nvml.install import install


class SimulatedNvml(Nvml):
    """The NVML backend with a simulated library; its clock returns the monotonic seconds of the simulation."""

    def open(self, *, simulate: Mapping[str, Any] | None = None) -> None:
        """Install the simulation, as `Scenario.simulation` returns it, and open it. Raises DriverError or KeyError."""
        install(simulate or {}, self._clock)
        super().open()

    def facts(self) -> DriverFacts:
        """Return the library's facts, marked as simulated."""
        return super().facts()._replace(simulated=True)


def service(clock: Callable[[], float] = time.monotonic) -> worker.Service:
    """Return the service of a simulated worker, for use without a process."""
    return worker.Service(SimulatedNvml(clock), clock)


def main() -> None:
    """Serve the daemon that started this process, and end the process."""
    worker.give_up_privileges()
    sys.exit(worker.main(sys.argv[1:], SimulatedNvml()))
