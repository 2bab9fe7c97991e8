"""Words and advice for each reason for which the driver or a GPU is down. Most of the driver are return codes."""

from __future__ import annotations

from collections.abc import Collection

from gpugauge.driver.api import SUSPENDED
from gpugauge.driver.failing import PARTS
from gpugauge.driver.vendors import NO_GPU
from gpugauge.driver.vendors.vendor import Vendor

# What no vendor knows better.
_ADVICE = {
    "library_mismatch": "the library and the kernel driver have different versions: after an upgrade, reload the "
    "module or reboot",
    "gpu_not_found": "the driver found no GPU: check that it is seated, powered and visible to this container",
    "worker_unkillable": "two workers hang inside the kernel and cannot be ended: the driver is stuck, reboot the node",
    "worker_failed": "the worker process ends at once: the log of the daemon has its last output",
    "worker_error": "the worker process of gpugauge failed, not the driver: its exception follows; report it with this "
    "line",
    "unknown": "the driver returns an unknown error: if the container has lost its device files "
    "(systemctl daemon-reload causes this), restart it",
    "implausible_value": "the library returns a number of GPUs that no machine has: its version may not fit the kernel "
    "driver; reload the module or reboot",
    "failed": "reading the driver failed in the daemon: its log has the error; it retries with a new worker",
    "stuck": "the thread that reads the driver has stopped: restart the daemon, and report it with its log",
    "released": "the driver was released on request and stays closed until then",
}


def known_advice(reason: str, vendor: Vendor) -> str | None:
    """Return the advice for a reason of the driver, None if there is none."""
    return vendor.opening.get(reason) or _ADVICE.get(reason)


def advice(reason: str, vendor: Vendor) -> str:
    """Return the advice for a reason of the driver."""
    return known_advice(reason, vendor) or f"the driver reports {reason}"


# By reason, to follow "not available: ".
_WORDS = {
    "library_not_found": "it is not installed",
    "driver_not_loaded": "its kernel module is not loaded",
    "no_permission": "it denies access",
    "library_mismatch": "its library and its kernel module have different versions",
    "gpu_not_found": "it finds no GPU",
    "worker_unkillable": "it is stuck in the kernel",
    "worker_failed": "the worker process that reads it ends at once",
    "worker_error": "the worker process that reads it failed",
    "timeout": "it does not answer",
    "unknown": "it returns an unknown error",
    "failed": "the daemon fails to read it",
    "stuck": "the thread that reads it has stopped",
}
NO_GPU_ADVICE = "if this machine should have a GPU, see what is missing: gpugauge doctor"
# Reasons that are no fault on a machine without a GPU.
WITHOUT_GPU = frozenset({"library_not_found", "driver_not_loaded", "gpu_not_found"})


def words(reason: str, *, needed: bool = True) -> str:
    """Return the state of a driver that is down, in words; it is not `needed` on a machine without a GPU."""
    if not needed:
        return NO_GPU
    fixed = {"off": "off (driver.mode)", "starting": "is being opened", "released": "released on request"}
    return fixed.get(reason) or f"not available: {_WORDS.get(reason, f'it reports {reason}')}"


_SLOW = "see the kernel log; if calls stay slow, reboot the node when its jobs have ended"
FORGET = "if it was removed for good: {forget}"
REMEMBERED = "remembered"  # not a reason of the driver: the state file knows the GPU, and the machine has none
# By reason: what is wrong, and what to do, with words of the vendor; "" where the driver as a whole has its own advice.
_REASONS = {
    "gpu_is_lost": ("lost, see the kernel log", "{reboot}; replace it if it is lost again"),
    "reset_required": ("must be reset", "{reboot}"),
    "hangs": ("its driver calls hang, reboot the node", "{reboot}"),
    "crashes_worker": ("reading it crashes the driver's library", "update the driver, or exclude it by driver.devices"),
    "not_enumerated": ("the driver does not list it", "see the kernel log ({log}); then {reboot}"),
    "removed": ("not on the PCI bus", f"check that it is seated and powered; {FORGET}"),
    "driver_down": ("the driver is down", ""),
    REMEMBERED: ("not there now, only remembered", FORGET),
    "no_permission": ("the driver denies access", "allow this user to open {files}"),
    "no_uuid": ("reports no uuid", "{reboot}"),
    "worker_error": ("an error of gpugauge, see its log", "report it with the log of the daemon"),
    "too_slow": ("its driver calls take too long", _SLOW),
    "unknown": (
        "every call returns an unknown error",
        "restart the container if it has lost its device files (systemctl daemon-reload); otherwise {reboot}",
    ),
    "stale": ("no new values", "see the log of the daemon"),
    SUSPENDED: ("suspended by the kernel to save power", ""),
}
_UNKNOWN = ("", "see the log of the daemon and the kernel log; then {reboot}")


def down_phrase(reason: str | None) -> str:
    """Return what is wrong with a GPU that is down, in at most 51 characters."""
    phrase, _ = _REASONS.get(reason or "", _UNKNOWN)
    if phrase:
        return phrase if reason == SUSPENDED else f"down: {phrase}"
    return f"down: every call returns {reason}" if reason else "does not answer"


def unread_words(parts: Collection[str], reason: str) -> str:
    """Return which parts of a GPU cannot be read."""
    return f"cannot be read: {', '.join(PARTS.get(part, part) for part in parts)}: {reason.replace('_', ' ')}"


def unread_advice(reason: str, vendor: Vendor) -> str:
    """Return what to do about a GPU of which a part cannot be read."""
    known = {"too_slow": _SLOW, "unknown": _REASONS["unknown"][1]}
    return vendor.fill(known.get(reason, "see the kernel log ({failures}); then {reboot}"))


def down_advice(reason: str | None, vendor: Vendor) -> str | None:
    """Return what to do about a GPU that is down, None if the driver as a whole is."""
    return vendor.fill(_REASONS.get(reason or "", _UNKNOWN)[1]) or None
