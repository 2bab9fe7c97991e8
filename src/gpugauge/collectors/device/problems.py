"""The faults of GPUs, each judged once: alerts, dashboards and views show what this collector has found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from gpugauge.base.logline import fields
from gpugauge.collectors.base import RegisteredCollector, Sources, Tick
from gpugauge.driver.advice import unread_advice, unread_words
from gpugauge.driver.api import RELEASED, SUSPENDED, Device, DeviceReading, down_reason
from gpugauge.faults.judged import Judged, Track, health_of
from gpugauge.faults.repair import ANY_SITE, Advice, Site, needs
from gpugauge.faults.table import (
    DEFAULTS,
    FAULTS,
    NVLINK_CORRECTED,
    NVLINK_NEVER,
    PASSING,
    REASONED,
    SLOWDOWNS,
    Ailment,
    GpuHealth,
    ailments,
    lost,
    order,
    slowed_by,
    xid_fault,
)
from gpugauge.metric import Metric, Table, by, families
from gpugauge.node.node import Load, Xids
from gpugauge.settings.model import Faults, Settings

log = logging.getLogger("gpugauge.events")

_OVER_SECONDS = 60.0  # without a fault before it counts as over
_LINK_SECONDS = 300.0  # over which a GPU is under load, for the width of its link
_NO_XIDS = Xids({}, {})
_MAX_STEP_SECONDS = 15.0  # for which the reasons of one reading count, where the driver counts no seconds


class _Faults(NamedTuple):
    """Those of a GPU, found at a place. `judged` is false while the driver is released: only older errors are known."""

    faults: tuple[Ailment, ...]
    judged: bool
    place: Site


class _Gpu(NamedTuple):
    """The same, with the advice on each."""

    faults: tuple[Ailment, ...]
    judged: bool
    advice: list[Advice]
    number: str


def _names(gpu: _Gpu) -> dict[tuple[str, ...], float]:
    return {(each.runbook, FAULTS[each.runbook].severity): 1 for each in gpu.faults}


def _info(gpu: _Gpu) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for each, advice in zip(gpu.faults, gpu.advice, strict=True):  # of several reasons, the gravest
        fault = FAULTS[each.runbook]
        summary = f"had {each.text}" if each.kind == "xid" else fault.summary
        summary += f": {each.text}" if each.runbook in REASONED else f" {each.where}" if each.where else ""
        summary += f" because of {slowed_by(each.reason)}" if each.runbook == "GpuThrottled" else ""
        summary = each.text if each.runbook == "GpuReadingFailed" else summary
        words = (each.reason, fault.word, summary, *advice, fault.action, gpu.number)
        found.setdefault((each.runbook, *each.xid), words)
    return {(name, *xid, *words): 1 for (name, *xid), words in found.items()}


def _since(gpu: _Gpu) -> dict[tuple[str, ...], float]:
    dated = {each.runbook: (each.earlier, each.since) for each in reversed(gpu.faults) if each.since is not None}
    return {(name, "true" if earlier else ""): since for name, (earlier, since) in dated.items()}


def _index(device: Device) -> str:
    """Return the index of a GPU in words, "" of one that was lost before it was read."""
    return str(device.reading.index) if device.reading.index >= 0 else ""


def _unread(device: Device) -> Iterator[Ailment]:
    """Yield a fault for each reason for which parts of a GPU cannot be read."""
    for reason in sorted({failure.reason for failure in device.failures}):
        failures = [failure for failure in device.failures if failure.reason == reason]
        since = min(failure.since for failure in failures)
        text = unread_words([failure.reading for failure in failures], reason)
        yield Ailment(text, unread_advice(reason, device.vendor), "GpuReadingFailed", reason, since=since)


_gpu = Table[_Gpu]("uuid")
METRICS: tuple[Metric, ...] = (
    PROBLEM := _gpu.gauge(
        "gpu_problem",
        "1 for each fault of the GPU that is there now, by the name of its alert (docs/runbook.md), with its severity. "
        "Absent for the other faults.",
        _names,
        *("problem", "severity"),
    ),
    PROBLEM_INFO := _gpu.gauge(
        "gpu_problem_info",
        "The words of each series of gpu_problem, and the index of the GPU; always 1. Xid errors have a series for "
        "each code. state is at most 14 characters long, summary follows the name of the GPU, advice is what to do, in "
        "lines. when, command and note are its parts if it has the steps of a repair. action is what drains nodes "
        "should do: reset, reset_later (when its jobs have ended), drain, or empty.",
        _info,
        *("problem", "xid", "xid_name", "reason", "state", "summary"),
        *("advice", "when", "command", "note", "action", "index"),
    ),
    SINCE := _gpu.gauge(
        "gpu_problem_since_timestamp_seconds",
        "Unix time of the begin of the fault, or of the first look at it; earlier is true where it may have been there "
        "before. Absent for lost GPUs, and for Xid errors, which have times of their own.",
        _since,
        *("problem", "earlier"),
    ),
    PROBLEMS := _gpu.gauge(
        "gpu_problems",
        "Number of faults of the GPU, 0 without one. Absent while the driver is released.",
        lambda g: len({each.runbook for each in g.faults}) if g.judged else None,
    ),
)


class _Known(NamedTuple):
    """A fault that was logged: as an Ailment has them, and when it was last there."""

    since: float
    earlier: bool
    last: float  # monotonic


class _State:
    """Counters of one GPU over time, and whether its link was narrow under load and has not been wide since."""

    def __init__(self) -> None:
        self.narrow = False
        self.seen: object = None  # what the last judgement depends on
        self.first: float | None = None  # monotonic time of the first look at the GPU while it is up
        self._known: dict[tuple[str, str], _Known] = {}
        self._track, self._now = Track(), 0.0
        self._errors: dict[str, float] = {}  # of NVLinks, and when they grew last
        self._grown: float | None = None
        self._slowed = dict.fromkeys(SLOWDOWNS, 0.0)  # seconds, where the driver counts none

    def health(self, device: Device, load: Load | None, tick: Tick, limits: Faults) -> GpuHealth:
        """Return the figures of a GPU's reading, and those over time; `load` is that of its engine so far."""
        reading, now = device.reading, tick.monotonic
        errors = {kind: count for kind, count in (reading.nvlink_errors or {}).items() if kind in NVLINK_NEVER}
        if any(count > self._errors.get(kind, count) for kind, count in errors.items()):
            self._grown = tick.timestamp
        self._errors |= errors
        seconds = by(busy=load.busy, observed=load.observed) if load else {}
        counters = {**seconds, **self._lowered(reading, now)}
        counters |= {kind: count for kind, count in (reading.nvlink_errors or {}).items() if kind in NVLINK_CORRECTED}
        self._track.add(now, counters, max(limits.window_seconds, _LINK_SECONDS))
        rates = self._track.rates(counters, now, limits.window_seconds)
        return health_of(device, tick.driver.devices)._replace(
            nvlink_grown=self._grown,
            nvlink_corrected=max((rates[kind] for kind in NVLINK_CORRECTED if kind in rates), default=None),
            slowed={reason: rates[reason] for reason in SLOWDOWNS if reason in rates},
            load=_share(rates),
            link_load=_share(self._track.rates(seconds, now, _LINK_SECONDS)),
            was_narrow=self.narrow,
        )

    def _lowered(self, reading: DeviceReading, now: float) -> dict[str, float]:
        """Return the seconds with lowered clocks by reason. Drivers before R575 do not count all of them."""
        passed, self._now = min(now - self._now, _MAX_STEP_SECONDS), now
        active, counted = reading.clocks_event_reasons, reading.clocks_event_nanoseconds or {}
        for reason in SLOWDOWNS:
            self._slowed[reason] += passed if reason in (active or ()) else 0.0
        sampled = {} if active is None else self._slowed
        return {**sampled, **{reason: counted[reason] / 1e9 for reason in SLOWDOWNS if reason in counted}}

    def dated(self, device: Device, faults: Iterable[Ailment], tick: Tick) -> Iterator[Ailment]:
        """Yield the faults with their begin. Log when one begins, and when it has not been there for a minute: a
        temperature may waver. What was there within a minute of the first look may have been there before.
        """
        now, where = tick.monotonic, fields(index=device.reading.index, uuid=device.uuid)
        self.first = now if self.first is None else self.first
        for each in faults:
            key = each.runbook, "" if each.kind == "gpu_slowed" else each.reason  # the reasons of slowdowns vary
            known = self._known.get(key)
            if known is None:
                log.warning("GPU fault %s: %s", each.runbook, each.text, extra=where)
                known = _Known(tick.timestamp, now - self.first <= _OVER_SECONDS, now)
            self._known[key] = known._replace(last=now)
            yield each._replace(since=known.since, earlier=known.earlier)
        for key in [key for key, known in self._known.items() if now - known.last > _OVER_SECONDS]:
            del self._known[key]
            log.info("GPU fault %s is over%s", key[0], f": {key[1]}" if key[1] else "", extra=where)

    def unseen(self, now: float) -> None:
        """What cannot be read is not over."""
        self.first = None
        self._known = {key: known._replace(last=now) for key, known in self._known.items()}


def _share(rates: Mapping[str, float]) -> float | None:
    """Return the share of the observed time in which a GPU was busy, None without any."""
    return min(1.0, rates["busy"] / rates["observed"]) if rates.get("observed") else None


class FaultsCollector(RegisteredCollector):
    """Rows by uuid; the same section until a fault comes, changes or goes."""

    name = "faults"
    metrics = METRICS

    def __init__(self, site: Callable[[], Site] = lambda: ANY_SITE) -> None:
        self._limits, self._site, self._place, self._minute = DEFAULTS, site, ANY_SITE, -1.0
        self._states: dict[str, _State] = {}
        self._found: dict[str, _Faults] = {}
        self._section = Judged(self.name, (), {})

    @classmethod
    def create(cls, sources: Sources) -> FaultsCollector:
        """Return the collector; its advice has the commands of the daemon's place."""
        return cls(sources.site)

    def configure(self, settings: Settings) -> None:
        """Apply the thresholds."""
        self._limits = settings.faults

    def collect(self, tick: Tick) -> Judged:
        """Judge every GPU that has a new reading or event. Collectors that do not run contribute nothing."""
        if self._minute != (minute := tick.monotonic // 60):
            self._minute, self._place = minute, self._site()  # a manager of jobs may start later
        found: dict[str, _Faults] = {}
        for d in tick.driver.devices:
            state = self._states.setdefault(d.uuid, _State())
            readings = (d.generations.get("normal"), d.generations.get("slow"))
            seen = (d.up, d.reason, d.failures, readings, tick.node.xids.get(d.uuid), minute, self._place)
            known = d.uuid in self._found and seen == state.seen
            state.seen = seen
            judged = d.reason != RELEASED
            found[d.uuid] = self._found[d.uuid] if known else _Faults(self._faults(d, tick), judged, self._place)
        self._states = {uuid: state for uuid, state in self._states.items() if uuid in found}
        if found != self._found:
            every = [(d, each) for d in tick.driver.devices for each in found[d.uuid].faults]
            needed = [need for d, each in every for need in needs(d, [each.advice], FAULTS[each.runbook])]
            gpus = [
                ((d.uuid,), _Gpu(faults, judged, [*self._place.alerted(d, faults, needed)], _index(d)))
                for d, (faults, judged, _) in ((d, found[d.uuid]) for d in tick.driver.devices)
            ]
            rows = families(METRICS, gpus)
            self._section = Judged(self.name, rows, {uuid: gpu.faults for uuid, gpu in found.items()})
            self._found = found
        return self._section

    def _faults(self, device: Device, tick: Tick) -> tuple[Ailment, ...]:
        return tuple(sorted(self._any_order(device, tick), key=lambda each: order(each.runbook)))

    def _any_order(self, device: Device, tick: Tick) -> Iterator[Ailment]:
        if device.up:
            load = tick.node.loads.get(device.uuid)
            state = self._states[device.uuid]
            health = state.health(device, load, tick, self._limits)
            found = list(ailments(health, self._limits))
            if health.lanes:
                state.narrow = any(each.runbook == "GpuPcieDegraded" for each in found)
            yield from state.dated(device, found, tick)
            yield from _unread(device)
        else:
            self._states[device.uuid].unseen(tick.monotonic)
            if device.reason not in {RELEASED, SUSPENDED}:
                yield lost(down_reason(device.reason), device.vendor)
        last, unrepaired = tick.node.xids.get(device.uuid, _NO_XIDS)
        recent = {xid for xid, at in last.items() if tick.timestamp - at < self._limits.window_seconds}
        for xid in sorted({*recent, *unrepaired}):
            fault = xid_fault(xid, device.vendor, device.reading.index)
            if fault and xid in (recent if fault.runbook in PASSING else unrepaired):
                yield fault
