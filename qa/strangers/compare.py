"""Statements of the daemon about a process, each compared with what the process measured itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from qa.strangers.draw import STALLED_SECONDS
from qa.strangers.observe import Poll
from qa.strangers.timeline import Timeline

# A reported value is at most this old: a tick, the time between two polls, and the time of a request.
TICK = 6.5
# The facts of a process are published within this time after its first step.
PUBLISHED = 2.0
# A state is shown at most this long after it was true: until the verdict is computed, and the state has lasted.
SHOWN = 16.5
# Without a step or batch, a process is not training after this time.
START_LIMIT = 2 * STALLED_SECONDS
# The states that are true in a phase. An absent model of what is computed leaves it open where the training runs.
STATES = {
    "training": {"training", "training_on_cpu"},
    "loading": {"training", "training_on_cpu"},
    "other": {"training", "training_on_cpu"},
    "starting": {"starting"},
}


@dataclass(frozen=True)
class Statement:
    """One statement. `verdict` is right, absent or wrong."""

    name: str
    verdict: str
    expected: str
    reported: str


def right(name: str, expected: object, reported: object, holds: bool) -> Statement:
    """Return the statement, right if it holds."""
    return Statement(name, "right" if holds else "wrong", str(expected), str(reported))


def absent(name: str, expected: object, promised: bool) -> Statement:
    """Return the statement that is not made; that is wrong if the documentation promises it."""
    return Statement(name, "wrong" if promised else "absent", str(expected), "absent")


def statements(truth: Timeline, polls: list[Poll]) -> Iterator[Statement]:
    """Yield all statements about a process. Without a poll, all that is promised is absent."""
    promised = "steps" not in truth.unknown and bool(truth.steps)
    if not polls:
        yield absent("process", f"pid {truth.pid} with {len(truth.steps)} steps", promised)
        return
    last = polls[-1]
    yield _counters(polls)
    errors = last.value("gpugauge_hook_errors_total")
    yield right("errors of the hook", 0, errors, not errors)
    yield from _thread(last)
    if "threads" in truth.unknown:
        count, work = last.value("torch_steps_total"), last.value("torch_samples_total")
        few, most = truth.rounds, len(truth.steps)
        yield right("steps", f"{few} to {most}", count, count is not None and few <= count <= most)
        yield right("samples", "absent", work, work is None)
        return
    yield from _steps(truth, polls, promised)
    yield from _waits(truth, last)
    yield from _phases(truth, last)
    yield from _states(truth, polls)
    if "batches" not in truth.unknown:
        count = last.value("torch_batches_total")
        early = count is not None and truth.batches < count <= truth.batches + truth.early_batches
        yield from _count(
            "batches", round(count) if early and count else truth.batches, last, bool(truth.waits().known)
        )
    yield from _work(truth, last)
    lasting = bool(truth.steps) and truth.ended - truth.steps[0] > PUBLISHED
    if truth.parameters is not None and lasting and "parameters" not in truth.unknown:
        yield from _parameters(truth, truth.parameters, polls)


def _counters(polls: list[Poll]) -> Statement:
    fallen = {
        " ".join(key)
        for before, after in pairwise(polls)
        for key in before.values.keys() & after.values.keys()
        if key[0].endswith("_total") and after.values[key] < before.values[key]
    }
    return right("counters", "never fall", ", ".join(sorted(fallen)) or "never fall", not fallen)


def _thread(last: Poll) -> Iterator[Statement]:
    """Compare the time of the training thread in all states with the time of the phases."""
    found = last.parts("torch_thread_seconds_total")
    for phase, seconds in last.parts("torch_phase_seconds_total").items() if found else ():
        states = [found.get(f"{phase} {state}", 0.0) for state in ("running", "runnable", "asleep")]
        yield right(f"thread {phase}", f"at most {seconds:.2f} s", f"{sum(states):.2f}", sum(states) <= seconds + 0.1)


def _steps(truth: Timeline, polls: list[Poll], promised: bool) -> Iterator[Statement]:
    if "steps" in truth.unknown:
        count = polls[-1].value("torch_steps_total")
        if count is None:
            yield absent("steps", len(truth.steps), promised=False)
        else:
            # A model that no longer exists at the end does not show its last step, nor a thread its first.
            few = len(truth.steps) - 1 - truth.beside_main
            yield right("steps", len(truth.steps), count, few <= count <= len(truth.steps))
        return
    yield from _count("steps", len(truth.steps), polls[-1], promised)
    bad = []
    for poll in polls:
        count = poll.value("torch_steps_total")
        low, high = truth.steps_at(poll.before - TICK), truth.steps_at(poll.after)
        if (count is None and low) or (count is not None and not low <= count <= high):
            bad.append(f"{poll.after - truth.begin:.1f} s: {count}, true {low} to {high}")
    yield right("steps over time", "within a tick", "; ".join(bad[:3]) or "yes", not bad)


def _count(name: str, expected: int, last: Poll, promised: bool) -> Iterator[Statement]:
    count = last.value(f"torch_{name}_total")
    if count is None:
        if expected:
            yield absent(name, expected, promised)
    else:
        yield right(name, expected, count, count == expected)


def _work(truth: Timeline, last: Poll) -> Iterator[Statement]:
    """Compare the samples and tokens: those that the program reports, else those of its batches until the last step."""
    if "samples" in truth.unknown:
        return
    unseen = "steps" in truth.unknown  # then the steps that were seen count; those that were not can be any of them
    steps = round(last.value("torch_steps_total") or 0.0) if unseen else len(truth.steps)
    taken = [truth.batch_work(count) for count in range(steps, max(steps, len(truth.steps)) + 1)]
    for name, reported, place in (("samples", truth.samples, 0), ("tokens", truth.tokens, 1)):
        count = last.value(f"torch_{name}_total")
        allowed = [reported or (work and work[place]) or None for work in taken]
        expected = allowed[0]
        if count is not None:
            yield right(name, expected or "absent", count, count in allowed)
        elif expected:
            yield absent(name, expected, promised=not unseen)


def _parameters(truth: Timeline, allowed: tuple[int, ...], polls: list[Poll]) -> Iterator[Statement]:
    values = [value for poll in polls if (value := poll.value("torch_parameter_elements")) is not None]
    if values:
        yield right("parameters", " or ".join(map(str, allowed[:4])), values[-1], values[-1] in allowed)
    else:
        yield absent("parameters", allowed[0], promised="steps" not in truth.unknown and truth_long(polls))


def truth_long(polls: list[Poll]) -> bool:
    """Return whether a process was seen for longer than it may take until its facts are known."""
    return polls[-1].after - polls[0].before > 10


def _waits(truth: Timeline, last: Poll) -> Iterator[Statement]:
    waits = truth.waits()
    reported = last.parts("torch_data_wait_seconds_total")
    if "waits" in truth.unknown:
        return
    if not reported:
        total = sum(waits.known.values()) + sum(waits.other.values())
        if total:
            yield absent("waits", f"{total:.2f} s", promised=bool(waits.known))
        return
    reported = {("training" if phase == "starting" else phase): 0.0 for phase in reported} | {}
    for phase, seconds in last.parts("torch_data_wait_seconds_total").items():
        name = "training" if phase == "starting" else phase
        reported[name] += seconds
    any_known = bool(
        waits.known or truth.early_batches
    )  # the waits of an undeclared loader beside a declared one cannot be seen
    for phase in sorted({*waits.known, *waits.other, *reported}):
        known, other = waits.known.get(phase, 0.0), waits.other.get(phase, 0.0)
        seconds = reported.get(phase, 0.0)
        slack = max(0.2, 0.05 * (known + other)) + waits.delayed.get(phase, 0.0)
        early = truth.early_wait() if phase == "training" else 0.0
        least = known - waits.undecided.get(phase, 0.0) - slack
        holds = least <= seconds <= known + slack + early and (any_known or other < 0.2 or phase not in reported)
        holds = holds or abs(seconds - known - other) <= slack + early
        yield right(f"waits {phase}", f"{known:.2f} s and {other:.2f} s undeclared", f"{seconds:.2f}", holds)


def _phases(truth: Timeline, last: Poll) -> Iterator[Statement]:
    reported = last.parts("torch_phase_seconds_total")
    if not reported:
        yield absent("phase seconds", "seconds", promised=False)
        return
    end = truth.intervals[-1]
    work = float(end[0]) - truth.begin
    slack = max(0.05 * work, 0.3 + truth.longest_step())
    for phase, seconds in sorted(reported.items()):
        if phase == "starting":
            continue
        low = sum(b - a for a, b, phases in truth.intervals[:-1] if phases == {phase})
        high = sum(b - a for a, b, phases in truth.intervals if phase in phases)
        if truth.counted is not None and phase in {"loading", "training"}:  # before the session nothing is counted
            low -= sum(max(0.0, min(b, truth.counted) - a) for a, b, phases in truth.intervals if phases == {phase})
        yield right(
            f"phase {phase}", f"{low:.2f} to {high:.2f} s", f"{seconds:.2f}", low - slack <= seconds <= high + slack
        )


def _states(truth: Timeline, polls: list[Poll]) -> Iterator[Statement]:
    bad, shown = [], 0
    for poll in polls:
        state = poll.state
        if state is None:
            continue
        shown += 1
        allowed = allowed_states(truth, poll.before, poll.after)
        begun = truth.first is not None and truth.first < poll.before and "steps" not in truth.unknown
        if begun and truth.quiet(poll.before) > STALLED_SECONDS + SHOWN and poll.after < truth.ended:
            allowed = {"stalled"}
        if state not in allowed:
            bad.append(f"{poll.after - truth.begin:.1f} s: {state}")
    if shown:
        yield right("state over time", "only true states", "; ".join(bad[:4]) or "yes", not bad)
    elif truth_long(polls) and truth.session is not None and truth.ended - truth.session > 12:
        yield absent("state over time", "a state", promised=True)
    yield from _state_seconds(truth, polls[-1])


def allowed_states(truth: Timeline, before: float, after: float) -> set[str]:
    """Return the states that are true at that time, or were at most the time before it after which a state is shown."""
    states: set[str] = {"unknown"}
    for phase in truth.phases_between(before - SHOWN, after):
        states |= STATES.get(phase, {phase})
    if truth.first is not None and before > truth.first + TICK:
        states.discard("starting")
    elif truth.first is None or after < truth.first + TICK:
        states |= {"starting"}
    quiet = max(truth.quiet(time) for time in (after, *(t for t in truth.progress if before - SHOWN < t <= after)))
    gaps = [b - a for a, b in zip(truth.progress, truth.progress[1:], strict=False) if b > before - SHOWN and a < after]
    if max([quiet, *gaps]) >= STALLED_SECONDS - 0.5:
        states.add("stalled")
    slow_start = before - SHOWN < truth.first_progress and after - truth.started >= START_LIMIT - 0.5
    if "steps" in truth.unknown or slow_start:
        states.add("not_training")
    return states


def _state_seconds(truth: Timeline, last: Poll) -> Iterator[Statement]:
    reported = last.parts("training_seconds_total")
    if not reported:
        return
    seconds = {"training": sum(reported.get(state, 0.0) for state in STATES["training"])}
    seconds |= {
        s: v for s, v in reported.items() if s not in STATES["training"] and s not in {"unknown", "starting", "stalled"}
    }
    start = truth.counted or truth.begin
    for state, value in sorted(seconds.items()):
        phases = {"training", "loading", "other"} if state == "training" else {state}
        low = sum(max(0.0, b - max(a, start)) for a, b, true in truth.intervals[:-1] if true <= phases)
        high = sum(b - a for a, b, true in truth.intervals if true & phases)
        served = truth.waits().known.get("evaluating", 0.0)  # such waits belong to the state that they serve
        if state == "evaluating":
            high += served
        elif state == "training":
            low -= served
        elif state == "not_training":
            high += max(0.0, truth.first_progress - truth.started - START_LIMIT)
        stalled = reported.get("stalled", 0.0) + reported.get("unknown", 0.0) + reported.get("starting", 0.0)
        slack = max(1.0, truth.longest_step(), 0.05 * high)
        holds = low - slack - stalled <= value <= high + slack
        yield right(f"seconds {state}", f"{low:.2f} to {high:.2f} s", f"{value:.2f}", holds)
