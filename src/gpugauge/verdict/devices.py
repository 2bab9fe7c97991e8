"""Evidence about GPUs, computed from a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise

from gpugauge.driver.vendors import tensor_speedup
from gpugauge.faults.table import SLOWDOWNS
from gpugauge.node import training
from gpugauge.node.node import Node
from gpugauge.node.window import GpuSample, Point, Window, risen
from gpugauge.verdict.evidence import DeviceEvidence
from gpugauge.verdict.shares import copying

_LEAST_HELD = 0.01  # share of the time for which a process has a GPU that others use: it has memory on it
_VARYING = (("busy", "observed"), ("sm_active", "profiled"))  # counters of a GPU whose ratio shows what takes turns


def used_gpu(window: Window, uuid: str, process: str, pinned: bool | None) -> DeviceEvidence:
    """Return the means of one GPU over the window, and its use by the process."""
    key = (used_gpu, uuid)
    known: DeviceEvidence | None = window.cache.get(key)
    if known is None:
        known = window.cache[key] = _means(window, uuid)
    track = window.gpu(uuid)
    observed = track.rise(lambda gpu: gpu.observed)
    own = ratio(window.use(process, uuid).rise(lambda use: use.busy), observed)
    unowned = ratio(track.rise(lambda gpu: gpu.unaccounted), observed)
    node = window.node
    holders = _holders(node, uuid)
    kinds = {node.identities[holder].kind for holder in holders if holder in node.identities}
    shared = bool(set(holders) - {process} or node.hidden.get(uuid))
    return known._replace(
        own_busy=own,
        unowned_busy=unowned or 0.0,
        shared=shared,
        overlaps=shared and "mps" in kinds,
        transfer=copying(window, uuid, pinned),
    )


def held_parts(window: Window, uuid: str) -> Mapping[str, float]:
    """Return the part of a GPU that each process holds: by their busy time, equally where that is not known."""
    key = (held_parts, uuid)
    known: Mapping[str, float] | None = window.cache.get(key)
    if known is None:
        busy = {h: window.use(h, uuid).rise(lambda use: use.busy) for h in _holders(window.node, uuid)}
        times = {h: seconds for h, seconds in busy.items() if seconds is not None}
        least = max(1e-9, _LEAST_HELD * window.span)
        weights = {h: max(least, times[h]) if len(times) == len(busy) else 1.0 for h in busy}
        known = window.cache[key] = {h: weight / sum(weights.values()) for h, weight in weights.items()}
    return known


def _holders(node: Node, uuid: str) -> list[str]:
    return [holder for (holder, on), use in node.uses.items() if on == uuid and use.memory is not None]


def device(window: Window, uuid: str) -> DeviceEvidence:
    """Return the busy ratio and the SM activity of one GPU over the window."""
    key = (device, uuid)
    known: DeviceEvidence | None = window.cache.get(key)
    if known is None:
        track = window.gpu(uuid)
        known = window.cache[key] = DeviceEvidence(
            busy=ratio(track.rise(lambda gpu: gpu.busy), track.rise(lambda gpu: gpu.observed)),
            measured=uuid in window.node.loads,
            spread=max(spread(window, partial(_grown, uuid, *names)) for names in _VARYING),
            sm_active=ratio(track.rise(lambda gpu: gpu.sm_active), track.rise(lambda gpu: gpu.profiled)),
        )
    return known


def spread(window: Window, share: Callable[[Point, Point], float | None]) -> float:
    """Return the difference between the highest and the lowest value of a share between two points of the window."""
    found = [share(*pair) for piece in window.pieces for pair in pairwise(piece)]
    known = [value for value in found if value is not None]
    return max(known) - min(known) if known else 0.0


def _grown(uuid: str, part: str, whole: str, before: Point, after: Point) -> float | None:
    a, b = before.gpus.get(uuid), after.gpus.get(uuid)
    ends = [(getattr(a, name), getattr(b, name)) for name in (part, whole)] if a and b else []
    return ratio(*(risen(*pair) for pair in ends)) if ends and not any(None in pair for pair in ends) else None


def _means(window: Window, uuid: str) -> DeviceEvidence:
    reading, track = window.node.reading(uuid), window.gpu(uuid)
    limit, default = reading.power_limit_milliwatts, reading.power_limit_default_milliwatts
    known = window.node.device(uuid)
    return device(window, uuid)._replace(
        tensor_active=ratio(track.rise(lambda gpu: gpu.tensor_active), track.rise(lambda gpu: gpu.profiled)),
        tensor_speedup=tensor_speedup((known and known.reading.name) or ""),
        power=ratio(track.mean(lambda gpu: gpu.power_milliwatts), limit),
        clock=ratio(track.mean(lambda gpu: gpu.clock_mhz), reading.clock_sm_max_mhz),
        thermal=most(track.mean(partial(GpuSample.slowed, reason=reason)) for reason in SLOWDOWNS),
        power_capped=track.mean(lambda gpu: gpu.slowed("sw_power_cap")),
        power_limit_lowered=None if limit is None or default is None else limit < default,
    )


def most(values: Iterable[float | None]) -> float | None:
    """Return the largest of the values that are known."""
    return max((value for value in values if value is not None), default=None)


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return a share of at most 1, None if a value is not known or the whole is 0."""
    return None if part is None or not whole else min(1.0, part / whole)


def devices_of(node: Node, process: str) -> list[str]:
    """Return the GPUs on which the process has tensors, or memory by the driver's list."""
    session = node.sessions.get(process)
    found = set(training.by_uuid(session, lambda d: d.allocated)) if session and session.connected else set()
    return sorted(filter(node.shows, found.union(node.held(process))))
