"""The worker process of a machine with a GPU of AMD, and maybe others of NVIDIA, see `driver.worker`."""

from __future__ import annotations

import os
import sys

from gpugauge.driver import worker
from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.worker import Joined


class WorkerAmd(Amd):
    """The backend in a worker process, which reads files that all users may read."""

    def open(self, sysfs: str = "/sys", procfs: str = "/proc") -> None:
        """Find the GPUs, and give up the privileges. Raises DriverError without any."""
        super().open(sysfs, procfs)
        worker.give_up_privileges()


def backend() -> worker.Backend:
    """Return the backend of this machine: NVIDIA's library is loaded only where its kernel driver is."""
    amd = WorkerAmd()
    if not os.path.exists("/proc/driver/nvidia") and not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110  (pathlib would be 0.7 MB of the worker)
        return amd
    from gpugauge.driver.nvidia.worker import WorkerNvml  # noqa: PLC0415  (not needed on most machines)

    nvml = WorkerNvml()
    amd.calls = nvml.calls
    return Joined((nvml, amd), nvml.calls)


def main() -> None:
    """Serve the daemon that started this process, and end the process."""
    sys.exit(worker.main(sys.argv[1:], backend()))
