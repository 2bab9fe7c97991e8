"""What keeps a driver down, and what to do about it: one sentence by reason, the reason is the code's name."""

from __future__ import annotations

ADVICE = {
    "library_not_found": "libnvidia-ml.so.1 was not found: install the NVIDIA driver; a container needs the NVIDIA "
    "runtime and NVIDIA_DRIVER_CAPABILITIES=utility",
    "driver_not_loaded": "the NVIDIA library is there but its kernel driver is not loaded: load the module "
    "(modprobe nvidia), or give the container the device files",
    "no_permission": "the driver refuses this user: let it open /dev/nvidiactl and /dev/nvidia*",
    "library_mismatch": "library and kernel driver differ in version: after an upgrade reload the module or reboot",
    "gpu_not_found": "the driver found no GPU: is the GPU seated, powered and visible to this container?",
    "worker_unkillable": "two workers hang inside the kernel and cannot be ended: the driver is stuck, reboot the node",
    "worker_failed": "the process that talks to the driver fails at once; its last words are in the daemon's log",
    "timeout": "the driver does not answer when it is opened: look for Xid errors in the kernel log",
    "unknown": "the driver answers with an unknown error: if its device files were taken away from the container "
    "(systemctl daemon-reload does this), restart it",
    "failed": "reading the driver failed in the daemon itself, its log says how; it tries again with a fresh worker",
    "stuck": "the thread that looks after the driver has stopped: restart the daemon, and report it with its log",
    "released": "it was given back on request and is left alone until then",
}


def advice(reason: str) -> str:
    """Return the sentence for a reason."""
    return ADVICE.get(reason, f"the driver says {reason}")
