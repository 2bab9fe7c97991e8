"""The NVML backend."""

WORKER = "gpugauge.driver.nvidia.worker"  # the module that a worker process runs
