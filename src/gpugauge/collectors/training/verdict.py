"""Is each training process using its GPUs, and if not, why: gauges of the present verdict, and its integrals."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from gpugauge.collectors.base import Tick
from gpugauge.logline import fields
from gpugauge.metric import NONE, RATIO, SECONDS, LabelValues, Metric, Table, families
from gpugauge.snapshot import Section
from gpugauge.verdict.causes import CAUSES, STATES
from gpugauge.verdict.evidence import Evidence
from gpugauge.verdict.facts import WANTED, Progress, evidence, processes
from gpugauge.verdict.judge import LEAST_SECONDS, STALLED_SECONDS, Verdict, judge
from gpugauge.verdict.summary import Summary
from gpugauge.verdict.window import Window

log = logging.getLogger("gpugauge.verdict")

_process = Table("process")
_INTERVAL = 5.0  # seconds between two verdicts
_EARLY = 0.5  # by which a look may come earlier than that: ticks come from one to five seconds apart, and never exactly
_DWELL = 10.0 - _EARLY  # seconds for which a new state must hold before it is told
_LINGER = 300.0  # seconds for which the integrals of an ended process stay


_ONE_OF = {state: {other: int(other == state) for other in STATES} for state in STATES}


@dataclass(slots=True)
class _Account:
    """What one process has been told to be so far."""

    verdict: Verdict
    since: float  # of the candidate below, monotonic seconds
    candidate: str
    held: int = 0  # GPUs
    progress: Progress | None = None
    started: float = 0.0
    seen: float = 0.0
    live: bool = True
    summary: Summary = field(default_factory=Summary)

    def states(self) -> dict[str, int]:
        return _ONE_OF[self.verdict.state]

    def limited_by(self) -> dict[str, int]:
        return {self.verdict.limited_by: 1} if self.verdict.limited_by else {}

    def info(self) -> dict[tuple[str, ...], int]:
        return {(self.verdict.confidence, ",".join(sorted(self.verdict.undecidable))): 1}


LIVE: tuple[Metric, ...] = (
    _process.gauge(
        "training_state",
        "What the process does; exactly one state is 1.",
        NONE,
        lambda a: a.states(),
        "state",
    ),
    _process.gauge(
        "training_limited_by",
        "1 for the cause that the lost GPU time should be blamed on first; absent when nothing is worth naming.",
        NONE,
        lambda a: a.limited_by(),
        "cause",
    ),
    _process.gauge(
        "training_limited_by_ratio",
        "Share of the GPU time held that each cause cost over the last minute.",
        RATIO,
        lambda a: a.verdict.causes,
        "cause",
    ),
    _process.gauge(
        "training_verdict_info",
        "How sure the verdict is: inside with the hook, outside without; undecidable are causes that the GPU cannot "
        "show; always 1.",
        NONE,
        lambda a: a.info(),
        *("confidence", "undecidable"),
    ),
)

LASTING: tuple[Metric, ...] = (
    _process.counter(
        "training_seconds_total",
        "Time that the process spent in each state.",
        SECONDS,
        lambda a: a.summary.seconds,
        "state",
    ),
    _process.counter(
        "training_gpu_held_seconds_total",
        "GPU time that the process held: GPUs times seconds.",
        SECONDS,
        lambda a: a.summary.held,
    ),
    _process.counter(
        "training_lost_seconds_total",
        "GPU time lost by cause; all causes, unknown included, add up to the GPU time lost.",
        SECONDS,
        lambda a: a.summary.lost,
        "cause",
    ),
)


class VerdictCollector:
    """Runs after all others: it reads what they exported, every few seconds, over a window of a minute. See judge()
    for `stalled_seconds`.
    """

    name = "verdict"
    metrics = LIVE + LASTING

    def __init__(self, stalled_seconds: float = STALLED_SECONDS) -> None:
        self.stalled_seconds = stalled_seconds
        self._window = Window(WANTED)
        self._accounts: dict[str, _Account] = {}
        self._due = 0.0
        self._before: float | None = None
        self._section = Section(self.name, ())

    def collect(self, tick: Tick) -> Section:
        """Return the verdicts; the same section until the next look."""
        if tick.monotonic < self._due:
            return self._section
        self._due = tick.monotonic + _INTERVAL - _EARLY
        self._window.add(tick.monotonic, tick.sections)
        elapsed = 0.0 if self._before is None else min(tick.monotonic - self._before, 3 * _INTERVAL)
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
        summary.saw_load([device.busy for device in found.devices if device.busy is not None], elapsed)
        summary.peak_memory = max(summary.peak_memory, self._memory(process))
        if account.held and not summary.lost:
            summary.lost = dict.fromkeys(CAUSES, 0.0)
        for cause, share in verdict.causes.items() if account.held else ():
            summary.lost[cause] += elapsed * account.held * share

    def _memory(self, process: str) -> float:
        peaks = self._window.now("torch_memory_allocated_peak_bytes", "process", process)
        return sum(float(value) for _, value in peaks if isinstance(value, (int, float)))

    def _progress(self, process: str, before: Progress | None, tick: Tick) -> Progress | None:
        steps, batches = (self._window.last(f"torch_{what}_total", process) for what in ("steps", "batches"))
        if steps is None and batches is None:
            return before
        count = (steps or 0.0) + (batches or 0.0)
        if before and before.count == count:
            return before
        last = self._window.last("training_last_step_timestamp_seconds", process)
        # A daemon that has just started asks how long the process has stood still already.
        age = max(0.0, tick.timestamp - last) if before is None and last is not None else 0.0
        return Progress(count, tick.monotonic - age)

    def _settle(self, account: _Account, verdict: Verdict, found: Evidence, now: float) -> Verdict:
        """Tell a new state only when there is enough evidence and it has held for a while."""
        old = found.age is not None and found.age > LEAST_SECONDS
        state = "unknown" if old and self._window.span < LEAST_SECONDS else verdict.state
        if state != account.candidate:
            account.candidate, account.since = state, now
        first = account.verdict.state == "unknown" and state != "unknown"
        if state == account.verdict.state or first or now - account.since >= _DWELL:
            if state == verdict.state:
                return verdict
            return Verdict(state, verdict.confidence)
        # The causes belong to the state that is told: they wait for it.
        return account.verdict

    def _end(self, present: set[str], tick: Tick) -> None:
        for process, account in list(self._accounts.items()):
            if process not in present and account.live:
                account.live = False
                _tell_end(process, account, tick.monotonic)
            if tick.monotonic - account.seen > _LINGER:
                del self._accounts[process]


def _tell_end(process: str, account: _Account, now: float) -> None:
    """One line about a process that trained, when it has ended."""
    if account.summary.seconds.keys() & {"training", "training_on_cpu"}:
        told = account.summary.line()
        log.info("a training has ended", extra=fields(process=process, seconds=round(now - account.started), **told))
