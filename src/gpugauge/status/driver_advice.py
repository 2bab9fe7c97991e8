"""Advice for each reason for which the driver is down. Most reasons are the names of return codes."""

from __future__ import annotations

ADVICE = {
    "library_not_found": "libnvidia-ml.so.1 was not found: install the NVIDIA driver; a container needs the NVIDIA "
    "runtime and NVIDIA_DRIVER_CAPABILITIES=utility",
    "driver_not_loaded": "the NVIDIA library is there but its kernel driver is not loaded: load the module "
    "(modprobe nvidia), or give the container the device files",
    "no_permission": "the driver denies access: allow this user to open /dev/nvidiactl and /dev/nvidia*",
    "library_mismatch": "the library and the kernel driver have different versions: after an upgrade, reload the "
    "module or reboot",
    "gpu_not_found": "the driver found no GPU: check that it is seated, powered and visible to this container",
    "worker_unkillable": "two workers hang inside the kernel and cannot be ended: the driver is stuck, reboot the node",
    "worker_failed": "the worker process ends at once: the log of the daemon has its last output",
    "worker_error": "the worker process of gpugauge failed, not the driver: its exception follows; report it with this "
    "line",
    "timeout": "opening the driver timed out: check the kernel log for Xid errors",
    "unknown": "the driver returns an unknown error: if the container has lost its device files "
    "(systemctl daemon-reload causes this), restart it",
    "failed": "reading the driver failed in the daemon: its log has the error; it retries with a new worker",
    "stuck": "the thread that reads the driver has stopped: restart the daemon, and report it with its log",
    "released": "the driver was released on request and stays closed until then",
}


def advice(reason: str) -> str:
    """Return the advice for a reason."""
    return ADVICE.get(reason, f"the driver reports {reason}")
