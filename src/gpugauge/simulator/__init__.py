"""The simulator: doubles of the NVML library, of `/proc` and of the hook, made from a scenario."""

WORKER = "gpugauge.simulator.worker"  # the module that a simulated worker process runs
