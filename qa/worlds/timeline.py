"""A training as a sequence of phases: the series that its hook would show, and the true time in each state."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from gpugauge import catalog
from gpugauge.collectors.base import Tick
from gpugauge.driver.api import DriverView
from gpugauge.metric import Family
from gpugauge.snapshot import Section
from gpugauge.wire.record import PHASES
from qa.worlds.scraped import node_of

ROWS = {row.name: row for row in catalog.metrics()}
_INFO_LABELS = ROWS["torch_process_info"].labels[1:]
UNIX = 1_700_000_000.0
EPSILON = 1e-9


@dataclass(frozen=True)
class Span:
    """Seconds in one phase. A wait (`loading`) serves the phase `serves`. In a `training` phase a step ends every
    `step` seconds, none with 0. Each wait ends with a batch.
    """

    phase: str
    seconds: float
    step: float = 0.0
    serves: str = "training"


@dataclass(frozen=True)
class Timeline:
    """A process that begins at `begin`, in seconds of the daemon's monotonic clock, and runs through its spans.
    `counted` are the families of counts that it has: an optimizer that is not torch's has no steps. Waits are reported
    `lag` seconds late.
    """

    spans: tuple[Span, ...]
    begin: float = 0.0
    device: str = "cuda:0"
    counted: frozenset[str] = frozenset({"steps", "batches", "waits"})
    lag: float = 0.0
    allocator: str = "native"

    @property
    def end(self) -> float:
        """The time of its end."""
        return self._bounds[-1]

    @cached_property
    def _bounds(self) -> tuple[float, ...]:
        return tuple(accumulate((span.seconds for span in self.spans), initial=self.begin))

    @cached_property
    def _steps(self) -> tuple[float, ...]:
        parts = zip(self._bounds, self.spans, strict=False)
        numbered = ((start, span.step, int(span.seconds / span.step + EPSILON)) for start, span in parts if span.step)
        return tuple(start + i * step for start, step, count in numbered for i in range(1, count + 1))

    @cached_property
    def _batches(self) -> tuple[float, ...]:
        return tuple(end for end, span in zip(self._bounds[1:], self.spans, strict=True) if span.phase == "loading")

    def parts(self, until: float) -> Iterator[tuple[float, float, Span]]:
        """Yield begin, end and span of the spans before a time; the last end is that time."""
        for start, end, span in zip(self._bounds, self._bounds[1:], self.spans, strict=False):
            if start < until:
                yield start, min(end, until), span

    def state(self, span: Span) -> str:
        """Return the true state of a span."""
        phase = span.serves if span.phase == "loading" else span.phase
        return "training_on_cpu" if phase == "training" and self.device == "cpu" else phase

    def last_progress(self, now: float) -> float | None:
        """Return the time of the last step or batch until now."""
        return max((moment for moment in self._steps + self._batches if moment <= now), default=None)

    def truth(self, since: float, until: float) -> dict[str, float]:
        """Return the true seconds in each state between two times."""
        found: defaultdict[str, float] = defaultdict(float)
        for start, end, span in self.parts(until):
            found[self.state(span)] += max(0.0, end - max(start, since))
        return {state: seconds for state, seconds in found.items() if seconds > 0}

    def section(self, now: float) -> Section:
        """Return the series at a time; those that stay after its end, if it has ended."""
        if now <= self.begin:
            return Section("training", ())
        at = min(now, self.end)
        seconds, waits = dict.fromkeys(PHASES, 0.0), defaultdict[str, float](float)
        for start, end, span in self.parts(at):
            seconds[span.phase] += end - start
            reported = now >= self.end or end <= at - self.lag
            if span.phase == "loading" and reported and (end < at or end in self._bounds):
                waits[span.serves] += end - start
        start, _, current = list(self.parts(at))[-1]
        steps, batches = bisect_right(self._steps, at), bisect_right(self._batches, at)
        counts = steps and "steps" in self.counted
        cuda = self.device.startswith("cuda")
        settings = {"allocator": self.allocator, "current_device": "0" if cuda else ""}
        live: dict[str, Mapping[tuple[str, ...], float]] = {
            "torch_phase": {(phase,): float(phase == current.phase) for phase in PHASES},
            "training_phase_since_timestamp_seconds": {(): UNIX + start},
            "torch_parameter_bytes": {(self.device,): 1e9} if self.device else {},
        }
        lasting: dict[str, Mapping[tuple[str, ...], float]] = {
            "torch_process_info": {tuple("train.py" if n == "command" else "" for n in _INFO_LABELS): 1.0},
            "training_start_timestamp_seconds": {(): UNIX + self.begin},
            "torch_phase_seconds_total": {(phase,): spent for phase, spent in seconds.items()},
            "torch_steps_total": {(): float(steps)} if counts else {},
            "training_last_step_timestamp_seconds": {(): UNIX + self._steps[steps - 1]}
            if steps and "steps" in self.counted
            else {},
            "torch_batches_total": {(): float(batches)} if batches and "batches" in self.counted else {},
            "torch_memory_ooms_total": {("GPU-0",): 0.0} if cuda and self.allocator == "native" else {},
            "torch_settings_info": {tuple(settings.get(n, "") for n in ROWS["torch_settings_info"].labels[1:]): 1.0},
            "torch_data_wait_seconds_total": {(p,): s for p, s in waits.items()} if "waits" in self.counted else {},
        }
        shown = lasting | ({"training_end_timestamp_seconds": {(): UNIX + at}} if now >= self.end else live)
        families = [
            Family(ROWS[name], tuple((("p", *labels), value) for labels, value in samples.items()))
            for name, samples in shown.items()
            if samples
        ]
        return Section("training", tuple(families))


def tick(now: float, *sections: Section) -> Tick:
    """Return a tick with the sections of the collectors before the verdict."""
    return Tick(UNIX + now, now, DriverView(False, "off"), node=node_of(sections, UNIX + now, now))
