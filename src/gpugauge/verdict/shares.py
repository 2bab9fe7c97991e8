"""Seconds by phase, and the shares of a step, from the exported series of a process."""

from __future__ import annotations

from gpugauge.verdict.states import NAMED_PHASES, with_waits
from gpugauge.verdict.window import Window

_PHASES, _WAITS = "torch_phase_seconds_total", "torch_data_wait_seconds_total"
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
    """Return the shares of the window's time by part of the steps; a part that is not known is absent, and its time is
    in `rest`. {} if no part is known.
    """
    window = window.since_present("torch_process_info", process)
    phases = seconds_in_window(window, process)
    steps = window.rise("torch_step_duration_seconds", process)
    local = window.rise("torch_local_work_seconds_total", process)
    seconds = {
        "data": window.rise(_WAITS, process, "training"),
        "peers": None if steps is None or local is None else max(0.0, steps - local),
        **{phase: phases.get(phase) for phase in sorted(NAMED_PHASES)},
    }
    known = {part: spent for part, spent in seconds.items() if spent is not None}
    # A wait or a step that began before the window counts when it ends.
    whole = max(window.span, sum(known.values()))
    if not known or not whole:
        return {}
    return {**{part: spent / whole for part, spent in known.items()}, "rest": 1.0 - sum(known.values()) / whole}


def _totals(window: Window, name: str, process: str) -> dict[str, float]:
    samples = window.samples(name, "process", process)
    return {labels["phase"]: float(value) for labels, value in samples if isinstance(value, (int, float))}


def _rises(window: Window, name: str, process: str) -> dict[str, float]:
    totals = _totals(window, name, process) if window.span else {}
    # Most phases were never entered.
    rises = {phase: window.rise(name, process, phase) if total else 0.0 for phase, total in totals.items()}
    return {phase: rise for phase, rise in rises.items() if rise is not None}
