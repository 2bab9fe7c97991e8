"""The worker process with the NVML backend: `python -m gpugauge.driver.nvidia.worker --fd N --bell M`."""

from __future__ import annotations

import sys

from gpugauge.driver import worker
from gpugauge.driver.nvidia.nvml import Nvml

if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:], Nvml()))
