"""Phrases and advice for people for the reasons for which a GPU is down (`gpu_down_reason`)."""

from __future__ import annotations

_RESET = "end the programs on the GPU, and reset it (nvidia-smi --gpu-reset) or reboot the node"
# By reason: what is wrong, and what to do; "" where the driver as a whole is down, which has its own advice.
_REASONS = {
    "gpu_is_lost": (
        "lost, see the kernel log for Xid errors",
        f"drain the node; {_RESET}; replace it if it is lost again",
    ),
    "reset_required": ("must be reset", _RESET),
    "hangs": ("its driver calls hang, reboot the node", "drain the node, and reboot it"),
    "crashes_worker": ("reading it crashes the driver's library", "update the driver, or exclude it by driver.devices"),
    "not_enumerated": ("the driver does not list it", f"see the kernel log (dmesg | grep -i nvrm); {_RESET}"),
    "removed": (
        "not on the PCI bus",
        "check that it is seated and powered; if it was removed for good: gpugauge forget UUID",
    ),
    "driver_down": ("the driver is down", ""),
    "no_permission": ("the driver denies access", "allow this user to open /dev/nvidia*"),
    "no_uuid": ("reports no uuid", _RESET),
    "worker_error": ("an error of gpugauge, see its log", "report it with the log of the daemon"),
    "stale": ("no new values", "see the log of the daemon"),
}
_UNKNOWN = ("", f"see the log of the daemon and the kernel log; {_RESET}")


def down_phrase(reason: str | None) -> str:
    """Return what is wrong with a GPU that is down, in at most 51 characters."""
    phrase, _ = _REASONS.get(reason or "", _UNKNOWN)
    return f"down: {phrase}" if phrase else "does not answer"


def down_advice(reason: str | None) -> str | None:
    """Return what to do about a GPU that is down, None if the driver as a whole is."""
    return _REASONS.get(reason or "", _UNKNOWN)[1] or None
