"""Phrases for people for the reasons for which a GPU is down (`gpu_down_reason`)."""

from __future__ import annotations

_PHRASES = {
    "gpu_is_lost": "lost, see the kernel log for Xid errors",
    "reset_required": "must be reset",
    "hangs": "its driver calls hang, reboot the node",
    "crashes_worker": "reading it crashes the driver's library",
    "not_enumerated": "the driver does not list it",
    "removed": "not on the PCI bus",
    "driver_down": "the driver is down",
    "no_permission": "the driver denies access",
    "no_uuid": "reports no uuid",
    "worker_error": "an error of gpugauge, see its log",
    "stale": "no new values",
}


def down_phrase(reason: str | None) -> str:
    """Return what is wrong with a GPU that is down, in at most 51 characters."""
    phrase = _PHRASES.get(reason or "")
    return f"down: {phrase}" if phrase else "does not answer"
