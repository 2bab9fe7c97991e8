"""Seconds by phase, and the shares of a training, from the exported series of a process."""

from __future__ import annotations

from gpugauge.verdict.window import Window
from gpugauge.wire.shares import shares, with_waits

_PHASES, _WAITS = "torch_phase_seconds_total", "torch_data_wait_seconds_total"
_STEPS, _LOCAL = "torch_step_duration_seconds", "torch_local_work_seconds_total"
_RECENT_SECONDS = 10.0


def phase_seconds(window: Window, process: str) -> dict[str, float]:
    """Return the seconds in each phase since the session began, {} without a shared record."""
    return _totals(window, _PHASES, process)


def waits(window: Window, process: str) -> dict[str, float]:
    """Return the seconds waited for batches in each phase since the session began, {} if no wait is known."""
    return _totals(window, _WAITS, process)


def seconds_in_window(window: Window, process: str) -> dict[str, float]:
    """Return the seconds of the window in each phase, with its waits."""
    key = (seconds_in_window, process)
    known: dict[str, float] | None = window.cache.get(key)
    if known is None:
        rises = _rises(window, _PHASES, process)
        known = window.cache[key] = with_waits(rises, _rises(window, _WAITS, process)) if rises else {}
    return known


def recent_seconds(window: Window, process: str, phase: str | None) -> dict[str, float]:
    """Return the seconds of the last 10 s in each phase, with its waits. Where one value alone is known, all of the
    time is in the present `phase`.
    """
    totals = phase_seconds(window, process)
    if sum(totals.values()) <= _RECENT_SECONDS:
        return with_waits(totals, waits(window, process))
    found = seconds_in_window(window.recent(_RECENT_SECONDS), process)
    return found or ({phase: _RECENT_SECONDS} if phase else {})


def step_shares(window: Window, process: str) -> dict[str, float]:
    """Return the shares of a training in the window, or in its whole life if that is shorter; see wire.shares."""
    totals = phase_seconds(window, process)
    if totals and sum(totals.values()) <= window.seconds:
        waited = waits(window, process)
        steps, local = window.total(_STEPS, process), window.total(_LOCAL, process)
        return shares(with_waits(totals, waited), waited.get("training"), _peers(steps, local))
    window = window.since_present("torch_process_info", process)
    phases = seconds_in_window(window, process)
    peers = _peers(window.rise(_STEPS, process), window.rise(_LOCAL, process))
    return shares(phases, window.rise(_WAITS, process, "training"), peers, window.span)


def _peers(steps: float | None, local: float | None) -> float | None:
    """Return the waits for other ranks, from the seconds of steps and those without the waits."""
    return None if steps is None or local is None else max(0.0, steps - local)


def _totals(window: Window, name: str, process: str) -> dict[str, float]:
    samples = window.samples(name, "process", process)
    return {labels["phase"]: float(value) for labels, value in samples if isinstance(value, (int, float))}


def _rises(window: Window, name: str, process: str) -> dict[str, float]:
    totals = _totals(window, name, process) if window.span else {}
    # Most phases were never entered.
    rises = {phase: window.rise(name, process, phase) if total else 0.0 for phase, total in totals.items()}
    return {phase: rise for phase, rise in rises.items() if rise is not None}
