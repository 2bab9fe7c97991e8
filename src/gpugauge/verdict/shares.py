"""Seconds by phase, the shares of a training, and that of its copies, from the exported series."""

from __future__ import annotations

from gpugauge.verdict.savings import ALWAYS_COPYING, COPYING
from gpugauge.verdict.window import Window
from gpugauge.wire.shares import shares, with_waits

_PHASES, _WAITS = "torch_phase_seconds_total", "torch_data_wait_seconds_total"
_STEPS, _LOCAL = "torch_step_duration_seconds", "torch_local_work_seconds_total"
_RECENT_SECONDS = 10.0
# Bytes per second of one PCIe lane in each direction, by generation, after encoding.
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
# The driver copies memory that is not pinned through a buffer of its own, at the speed of a thread on the CPU: 8.5e9 by
# CUPTI on an H200 with batches of 256 MiB, 15.8e9 on an H100 in the doctor's check of copies (docs/verdict.md). This is
# between the two, and estimate.py has its tolerance.
_PAGEABLE_BYTES_PER_SECOND = 10e9


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


def copying(window: Window, uuid: str, pinned: bool | None) -> float | None:
    """Return the share of time that the PCIe traffic of a GPU takes: of pinned memory at the bandwidth of the link.
    None if it is not known, or if copies matter and it is not known whether their memory is pinned.

    Traffic of batches that are not pinned is what the GPU receives more than it sends: that of peers is symmetric, and
    checkpoints are sent.
    """
    generation = window.last("gpu_pcie_generation", uuid, "current")
    width = window.last("gpu_pcie_width", uuid, "current")
    sent = window.rise("gpu_pcie_transmitted_bytes_total", uuid)
    received = window.rise("gpu_pcie_received_bytes_total", uuid)
    seconds = window.rise("gpu_profiled_seconds_total", uuid)
    if not generation or not width or not seconds or sent is None or received is None:
        return None
    link = _LANE_BYTES_PER_SECOND.get(int(generation), _LANE_BYTES_PER_SECOND[6]) * width
    share = max(sent, received) / seconds / link
    pageable = (received - sent) / seconds / min(link, _PAGEABLE_BYTES_PER_SECOND)
    if pinned is None and pageable >= COPYING and share < ALWAYS_COPYING:
        return None
    return min(1.0, share if pinned is not False else max(share, pageable))
