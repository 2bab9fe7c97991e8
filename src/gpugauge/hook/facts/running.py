"""Facts about how the process runs: blocking launches, threads against CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gpugauge.hook.counts.modes import ANOMALY_DETECTION, AUTOCAST, PROFILER

_LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING"

# By mode, the function that returns whether it is on; those that this version of torch has.
IS_ON = {
    mode: function
    for mode, function in (
        (ANOMALY_DETECTION, getattr(torch, "is_anomaly_enabled", None)),
        (AUTOCAST, getattr(torch._C, "_is_any_autocast_enabled", None)),  # noqa: SLF001 - for all kinds of devices
        (PROFILER, getattr(getattr(torch, "autograd", None), "_profiler_enabled", None)),
    )
    if function is not None
}


def _started_with() -> str | None:
    """Return the variable in the environment of the process at its start."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{_LAUNCH_BLOCKING}=".encode()
    return next((entry[len(prefix) :].decode() for entry in entries if entry.startswith(prefix)), None)


# CUDA reads the variable once, when it is initialised. So a value counts only if it has not changed since before that.
_before_cuda = _started_with() if torch.cuda.is_initialized() else os.environ.get(_LAUNCH_BLOCKING)


def launch_blocking() -> dict[str, str | None]:
    """Return whether each launch of a kernel waits for its end. Empty before CUDA is used, and if it is not certain."""
    value = os.environ.get(_LAUNCH_BLOCKING)
    if not torch.cuda.is_initialized() or value != _before_cuda:
        return {}
    return {"launch_blocking": "no" if value in (None, "", "0") else "yes"}


def settings() -> dict[str, str | None]:
    """Return the settings of algorithms and of the allocator. They are not mistakes: a program can need them."""
    cudnn = torch.backends.cudnn
    flags = {"cudnn_benchmark": cudnn.benchmark, "cudnn_deterministic": cudnn.deterministic}
    flags["deterministic"] = torch.are_deterministic_algorithms_enabled()
    configured = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    backend = torch.cuda.get_allocator_backend() if torch.cuda.is_initialized() else None
    return {
        **{name: "yes" if on else "no" for name, on in flags.items()},
        "alloc_conf": configured,
        "allocator": backend,
    }


def threads() -> dict[str, str | None]:
    """Return the threads of one operator on the CPU, and the CPUs for them. Ranks of one host share its CPUs, unless
    they are bound to some: then it is not known how many ranks share them, and each counts by itself.
    """
    cpus = len(os.sched_getaffinity(0))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1") if cpus == os.cpu_count() else "1"
    return {"torch_threads": str(torch.get_num_threads()), "cpus": str(cpus), "ranks_on_cpus": ranks}
