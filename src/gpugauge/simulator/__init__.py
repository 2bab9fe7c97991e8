"""The simulator: doubles of the NVML library, of `/proc` and of the hook, made from a scenario.

The package `scenario` needs pydantic and is loaded by the daemon. The modules that a worker loads need the standard
library and pynvml only.
"""

WORKER = "gpugauge.simulator.worker"  # the module that a simulated worker process runs
