"""The worker process with the NVML backend, see `driver.worker`."""

from __future__ import annotations

import os
import sys

from gpugauge.driver import worker
from gpugauge.driver.nvidia.nvml import Nvml

_CONTROL_DEVICE = "/dev/nvidiactl"


class WorkerNvml(Nvml):
    """The NVML backend of a worker process, which has no capability once the library is in use."""

    def open(self, **_paths: str) -> None:
        """Give up the privileges, and open the library as Nvml.open() does. Raises DriverError."""
        if os.path.exists(_CONTROL_DEVICE):  # noqa: PTH110  (pathlib would be 0.7 MB of the worker)
            worker.give_up_privileges()
        # Otherwise the library starts nvidia-modprobe first, which creates the device files and needs the privileges.
        try:
            super().open()
        finally:
            worker.give_up_privileges()


def main() -> None:
    """Serve the daemon that started this process, and end the process."""
    sys.exit(worker.main(sys.argv[1:], WorkerNvml()))
