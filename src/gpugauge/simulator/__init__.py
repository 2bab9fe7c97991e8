"""A simulated machine: doubles of the NVML library, of `/proc` and of the hook, made from a scenario.

`scenario` is for the daemon and needs pydantic; what the worker loads is standard library only.
"""

WORKER = "gpugauge.simulator.worker"  # the module that a simulated worker process runs
