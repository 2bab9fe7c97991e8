"""Everything that knows NVML."""

WORKER = "gpugauge.driver.nvidia.worker"  # the module that a worker process runs
