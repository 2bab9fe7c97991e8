"""Seconds by phase, the shares of a training, and that of its copies, over a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpugauge.node import training
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session
from gpugauge.verdict.savings import ALWAYS_COPYING, COPYING
from gpugauge.wire.shares import divided, queued, shares, with_open, with_waits

_RECENT_SECONDS = 10.0
# Bytes per second of one PCIe lane in each direction, by generation, after encoding.
LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
# The driver copies memory that is not pinned through a buffer of its own, at the speed of a thread on the CPU: 8.5e9 by
# CUPTI on an H200 with batches of 256 MiB, 15.8e9 on an H100 in the doctor's check of copies (docs/proof/verdict.md).
# This is between the two, and estimate.py has its tolerance.
_PAGEABLE_BYTES_PER_SECOND = 10e9


def seconds_in_window(window: Window, process: str) -> dict[str, float]:
    """Return the seconds of the window in each phase, with its waits."""
    key = (seconds_in_window, process)
    known: dict[str, float] | None = window.cache.get(key)
    if known is None:
        rises = _rises(window, training.phases, process)
        known = window.cache[key] = with_waits(rises, _rises(window, training.waits, process)) if rises else {}
    return known


def recent_seconds(window: Window, process: str, phase: str | None) -> dict[str, float]:
    """Return the seconds of the last 10 s in each phase, with its waits. Where one value alone is known, all of the
    time is in the present `phase`.
    """
    session = window.node.sessions.get(process)
    totals = training.phases(session) if session else {}
    if sum(totals.values()) <= _RECENT_SECONDS:
        return with_waits(totals, training.waits(session) if session else {})
    found = seconds_in_window(window.recent(_RECENT_SECONDS), process)
    return found or ({phase: _RECENT_SECONDS} if phase else {})


def step_shares(window: Window, process: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares of a training in the window, or in its whole life if that is shorter, and their rest by what
    its thread does; see wire.shares.
    """
    session = window.node.sessions.get(process)
    if session is None:
        return {}, {}
    totals = training.phases(session)
    if totals and sum(totals.values()) <= window.seconds:
        return life_shares(session)
    window = since_reported(window, process)
    track = window.session(process)
    peers = _peers(track.rise(training.step_seconds), track.rise(training.local_work))
    peers = with_open(peers, min(window.span, training.open_wait(session)))
    seconds = seconds_in_window(window, process)
    found = shares(seconds, track.rise(waited_for_training), peers, window.span)
    thread = {state: track.rise(_of(_thread, state)) or 0.0 for state in _thread(session)}
    whole = window.span - seconds.get("starting", 0.0)
    return divided(found, thread, whole, track.rise(queued_loading) or 0.0)


def life_shares(session: Session) -> tuple[dict[str, float], dict[str, float]]:
    """Return the same of its whole life so far."""
    phases, waited = training.phases(session), training.waits(session)
    peers = with_open(_peers(training.step_seconds(session), training.local_work(session)), training.open_wait(session))
    found = shares(with_waits(phases, waited), waited.get("training"), peers)
    whole = sum(phases.values()) - phases.get("starting", 0.0)
    return divided(found, _thread(session), whole, queued_loading(session) or 0.0)


def queued_loading(session: Session) -> float | None:
    """Return the seconds for which a thread that loads its batches itself waited for a CPU meanwhile. None with a GPU,
    beside whose work batches may be loaded.
    """
    loader = training.loader(session)
    if session.facts.get("loader_workers") != "0" or not loader or training.exposed_wait(session) is not None:
        return None
    return queued(loader.queued_seconds, loader.batches, loader.measured)


def _thread(session: Session) -> dict[str, float]:
    return session.thread["training"]._asdict() if "training" in session.thread else {}


def since_reported(window: Window, process: str) -> Window:
    """Return the part of the window in which the process reports through the hook."""
    return window.where(lambda point: process in point.sessions)


def waited_for_training(session: Session) -> float | None:
    """Return the seconds waited for batches of the training, None if no wait is known."""
    return training.waits(session).get("training")


def _peers(steps: float | None, local: float | None) -> float | None:
    """Return the waits for other ranks, from the seconds of steps and those without the waits."""
    return None if steps is None or local is None else max(0.0, steps - local)


def _rises(window: Window, seconds: Callable[[Session], Mapping[str, float]], process: str) -> dict[str, float]:
    session = window.node.sessions.get(process) if window.span else None
    track = window.session(process)
    # Most phases were never entered.
    rises = {
        phase: track.rise(_of(seconds, phase)) if total else 0.0
        for phase, total in (seconds(session) if session else {}).items()
    }
    return {phase: rise for phase, rise in rises.items() if rise is not None}


def _of(seconds: Callable[[Session], Mapping[str, float]], phase: str) -> Callable[[Session], float | None]:
    return lambda session: seconds(session).get(phase)


def copying(window: Window, uuid: str, pinned: bool | None) -> float | None:
    """Return the share of time that the PCIe traffic of a GPU takes: of pinned memory at the bandwidth of the link.
    None if it is not known, or if copies matter and it is not known whether their memory is pinned.

    Traffic of batches that are not pinned is what the GPU receives more than it sends: that of peers is symmetric, and
    checkpoints are sent.
    """
    reading, track = window.node.reading(uuid), window.gpu(uuid)
    generation, width = reading.pcie_generation, reading.pcie_width
    sent, received = track.rise(lambda gpu: gpu.sent), track.rise(lambda gpu: gpu.received)
    seconds = track.rise(lambda gpu: gpu.profiled)
    if not generation or not width or not seconds or sent is None or received is None:
        return None
    link = LANE_BYTES_PER_SECOND.get(int(generation), LANE_BYTES_PER_SECOND[6]) * width
    share = max(sent, received) / seconds / link
    pageable = (received - sent) / seconds / min(link, _PAGEABLE_BYTES_PER_SECOND)
    if pinned is None and pageable >= COPYING and share < ALWAYS_COPYING:
        return None
    return min(1.0, share if pinned is not False else max(share, pageable))
