"""Verdict on each training process: gauges of the current verdict, and integrals over its lifetime."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gpugauge.collectors.base import RegisteredCollector, Tick
from gpugauge.logline import fields
from gpugauge.metric import NONE, RATIO, SECONDS, LabelValues, Metric, Table, families
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Section
from gpugauge.verdict.causes import CAUSES, STATES
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.facts import FAMILIES, Progress, evidence, processes
from gpugauge.verdict.judge import MIN_EVIDENCE_SECONDS, STALLED_SECONDS, Verdict, judge
from gpugauge.verdict.summary import Summary
from gpugauge.verdict.window import Window

log = logging.getLogger("gpugauge.verdict")

_process = Table("process")
_INTERVAL_SECONDS = 5.0  # between two verdicts
_TOLERANCE_SECONDS = 0.5  # by which a verdict can be earlier: ticks are 1 s to 5 s apart, and not exactly periodic
_DWELL_SECONDS = 10.0 - _TOLERANCE_SECONDS  # time for which a new state must hold before it is exported
_LINGER_SECONDS = 300.0  # time for which the integrals of an ended process are exported


_STATE_VALUES = {state: {other: int(other == state) for other in STATES} for state in STATES}


@dataclass(slots=True)
class _Account:
    """The exported verdict on one process, and its integrals. Times are monotonic seconds."""

    verdict: Verdict
    since: float  # start of `candidate`
    candidate: str  # state of the last verdict, exported once it has held for a while
    held: int = 0  # GPUs
    progress: Progress | None = None
    started: float = 0.0
    seen: float = 0.0
    live: bool = True
    summary: Summary = field(default_factory=Summary)

    def states(self) -> dict[str, int]:
        return _STATE_VALUES[self.verdict.state]

    def limited_by(self) -> dict[str, int]:
        return {self.verdict.limited_by: 1} if self.verdict.limited_by else {}

    def info(self) -> dict[tuple[str, ...], int]:
        return {(self.verdict.confidence, ",".join(sorted(self.verdict.undecidable))): 1}


LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "training_state",
        "State of the process; exactly one state is 1.",
        NONE,
        lambda a: a.states(),
        "state",
    ),
    _process.gauge(
        "training_limited_by",
        "1 for the main cause of the lost GPU time, which should be removed first; absent if no cause is large enough.",
        NONE,
        lambda a: a.limited_by(),
        "cause",
    ),
    _process.gauge(
        "training_limited_by_ratio",
        "Share of the held GPU time that was lost to each cause in the last minute.",
        RATIO,
        lambda a: a.verdict.causes,
        "cause",
    ),
    _process.gauge(
        "training_verdict_info",
        "Confidence of the verdict: inside with the hook, outside without. undecidable lists the causes that cannot "
        "be determined, because the GPU does not have the performance counters. Always 1.",
        NONE,
        lambda a: a.info(),
        *("confidence", "undecidable"),
    ),
)

LASTING: tuple[Metric, ...] = (
    _process.counter(
        "training_seconds_total",
        "Time of the process in each state.",
        SECONDS,
        lambda a: a.summary.seconds,
        "state",
    ),
    _process.counter(
        "training_gpu_held_seconds_total",
        "GPU time held by the process: number of GPUs times seconds.",
        SECONDS,
        lambda a: a.summary.held,
    ),
    _process.counter(
        "training_lost_seconds_total",
        "Lost GPU time by cause; the sum over all causes, including unknown, is the total lost GPU time.",
        SECONDS,
        lambda a: a.summary.lost,
        "cause",
    ),
)


class VerdictCollector(RegisteredCollector):
    """Runs after all others, since it reads their sections: every five seconds, over a window of a minute. For
    `stalled_seconds` see `judge`.
    """

    name = "verdict"
    metrics = LIVE + LASTING

    def __init__(self, stalled_seconds: float = STALLED_SECONDS) -> None:
        self.stalled_seconds = stalled_seconds
        self._window = Window(FAMILIES)
        self._accounts: dict[str, _Account] = {}
        self._due = 0.0
        self._before: float | None = None
        self._section = Section(self.name, ())

    def configure(self, settings: Settings) -> None:
        """Apply `verdict.stalled_seconds`."""
        self.stalled_seconds = settings.verdict.stalled_seconds

    def collect(self, tick: Tick) -> Section:
        """Return the verdicts; the same section until the next verdict."""
        if tick.monotonic < self._due:
            return self._section
        self._due = tick.monotonic + _INTERVAL_SECONDS - _TOLERANCE_SECONDS
        self._window.add(tick.monotonic, tick.sections)
        elapsed = 0.0 if self._before is None else min(tick.monotonic - self._before, 3 * _INTERVAL_SECONDS)
        self._before = tick.monotonic
        present = processes(self._window)
        for process in present:
            self._judge(process, tick, elapsed)
        self._end(present, tick)
        accounts: list[tuple[LabelValues, _Account]] = [((p,), a) for p, a in sorted(self._accounts.items())]
        live = [(labels, account) for labels, account in accounts if account.live]
        self._section = Section(self.name, families(LIVE, live) + families(LASTING, accounts))
        return self._section

    def _judge(self, process: str, tick: Tick, elapsed: float) -> None:
        now = tick.monotonic
        account = self._accounts.get(process)
        if account is None:
            account = _Account(Verdict("unknown", "outside"), now, "unknown", started=now)
            self._accounts[process] = account
        account.live, account.seen = True, now
        account.progress = self._progress(process, account.progress, tick)
        found = evidence(self._window, process, now, tick.timestamp, account.progress)
        verdict = self._settle(account, judge(found, account.verdict, self.stalled_seconds), found, now)
        account.verdict, account.held = verdict, len(found.devices) + found.unused_devices
        summary = account.summary
        summary.seconds[verdict.state] += elapsed
        summary.held += elapsed * account.held
        summary.add_load([device.busy for device in found.devices if device.busy is not None], elapsed)
        summary.peak_memory = max(summary.peak_memory, self._memory(process))
        if account.held and not summary.lost:
            summary.lost = dict.fromkeys(CAUSES, 0.0)
        for cause, share in verdict.causes.items() if account.held else ():
            summary.lost[cause] += elapsed * account.held * share

    def _memory(self, process: str) -> float:
        peaks = self._window.samples("torch_memory_allocated_peak_bytes", "process", process)
        return sum(float(value) for _, value in peaks if isinstance(value, (int, float)))

    def _progress(self, process: str, before: Progress | None, tick: Tick) -> Progress | None:
        steps, batches = (self._window.last(f"torch_{what}_total", process) for what in ("steps", "batches"))
        if steps is None and batches is None:
            return before
        count = (steps or 0.0) + (batches or 0.0)
        if before and before.count == count:
            return before
        last = self._window.last("training_last_step_timestamp_seconds", process)
        # After a start of the daemon, the time without progress includes the time before the start.
        age = max(0.0, tick.timestamp - last) if before is None and last is not None else 0.0
        return Progress(count, tick.monotonic - age)

    def _settle(self, account: _Account, verdict: Verdict, found: Evidence, now: float) -> Verdict:
        """Return the verdict to export: a new state needs enough evidence and must have held for a while."""
        old = found.age is not None and found.age > MIN_EVIDENCE_SECONDS
        state = "unknown" if old and self._window.span < MIN_EVIDENCE_SECONDS else verdict.state
        if state != account.candidate:
            account.candidate, account.since = state, now
        first = account.verdict.state == "unknown" and state != "unknown"
        if state == account.verdict.state or first or now - account.since >= _DWELL_SECONDS:
            if state == verdict.state:
                return verdict
            return Verdict(state, verdict.confidence)
        return account.verdict  # its causes belong to the exported state

    def _end(self, present: set[str], tick: Tick) -> None:
        for process, account in list(self._accounts.items()):
            if process not in present and account.live:
                account.live = False
                _log_end(process, account, tick.monotonic)
            if tick.monotonic - account.seen > _LINGER_SECONDS:
                del self._accounts[process]


def _log_end(process: str, account: _Account, now: float) -> None:
    """Log the summary of a process that has ended, if it was training."""
    if account.summary.seconds.keys() & {"training", "training_on_cpu"}:
        line = account.summary.line()
        log.info("training ended", extra=fields(process=process, seconds=round(now - account.started), **line))
