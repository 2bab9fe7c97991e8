"""Words for people for states, causes and kinds of processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby

from gpugauge.base.serving import ROLES
from gpugauge.verdict.causes import CAUSES

_STATES = {
    "starting": "starting",
    "compiling": "compiling",
    "training": "training",
    "evaluating": "evaluating",
    "checkpointing": "checkpoint",
    "generating": "generating",
    "stalled": "stalled",
    "training_on_cpu": "on the CPU",
    "held_idle": "idle",
    "not_training": "not training",
}
HEADS = ("Faults", "Wasted GPU time")  # of the problems: what is to be repaired, and what only wastes time
SIMULATED = "SIMULATED: these GPUs do not exist."
HOOK_COMMAND = "gpugauge run -- python train.py"
# The command is last: people copy the rest of the line.
RUN_ADVICE = f"if it trains, start it under the hook next time to learn its state: {HOOK_COMMAND}"
HOOK_ADVICE = f"start the programs under the hook next time to learn the cause: {HOOK_COMMAND}"
STALLED_ADVICE = "find out where it waits: py-spy dump --pid {}"
STALLED_ELSEWHERE = "find out where it waits: with py-spy, in its container or on its host, where its pid is known"
IDLE_ADVICE = "end it, or give it work: it holds the memory of the GPU and no kernel runs"


def cause_phrase(cause: str) -> str:
    """Return what a process with a cause does, such as "waits for its data loader"."""
    return CAUSES[cause].phrase if cause in CAUSES else f"is limited by {cause.replace('_', ' ')}"


def limit_words(limit: str, causes: Mapping[str, float]) -> str:
    """Return what limits a process. Of one whose main cause is not sure these are, as in alerts, the two that take most
    of its GPU time, if the first takes more than nothing explains. `causes` has the shares.
    """
    return ", and ".join(map(cause_phrase, largest(limit, causes) or [limit]))


def largest(limit: str | None, causes: Mapping[str, float]) -> list[str]:
    """Return the two causes that take most where the main one is not sure, else []."""
    known = sorted((name for name in causes if name != "unknown"), key=causes.__getitem__, reverse=True)
    unsure = limit == "unknown" and known and causes[known[0]] > causes.get("unknown", 0.0)
    return known[:2] if unsure else []


def loader_advice(undecidable: Collection[str], data_wait_ratio: float | None) -> str:
    """Return what makes the waits of a process for its loader known, "" if they are, or if more than that is missing.
    `undecidable` are names of causes.
    """
    declare = "declare the loader with gpugauge.hook.batches() or gpugauge.hook.waiting()"
    unknown = "data_loading" in undecidable and data_wait_ratio is None
    return f"the waits for batches are not known: {declare}" if unknown else ""


def state_words(
    state: str | None, role: str | None, hook: bool, *, starting: bool = False, silent: bool = False
) -> str:
    """Return the state of a process in at most 12 characters. `silent`: the hook has not reported for minutes."""
    if role == "display" or (role in ROLES and state in {None, "unknown"}):
        return role
    if starting and state in {None, "unknown"}:
        return "no report" if silent else "starting"
    return "no hook" if state in {None, "unknown"} and not hook else _STATES.get(state or "", state or "")


def percent(ratio: float | None) -> str:
    """Return a ratio in per cent, "-" if it is unknown."""
    return "-" if ratio is None else f"{100 * ratio:.0f} %"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, with two digits below ten."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= size:
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
    return f"{digits(1000 * max(0.0, seconds), 3)} ms"


def clock(at: float) -> str:
    """Return a Unix time as "2026-11-29 14:02 UTC": people copy it into tickets."""
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M} UTC"


def since_words(at: float | None, earlier: bool = False) -> str | None:
    """Return since when a problem is there, None if that is not known. `earlier`: it may have been there before."""
    return None if at is None else f"{'at least ' if earlier else ''}since {clock(at)}"


def factor(value: float) -> str:
    """Return a factor, as 1.4, 12 or 200."""
    return digits(value, 2)


def digits(value: float, count: int) -> str:
    """Return a number with `count` digits or, if it is larger, as a whole number; never with an exponent."""
    exponent = int(f"{value:.{count - 1}e}".partition("e")[2])
    places = max(0, count - 1 - exponent)
    text = f"{value:.{places}f}"
    return text.rstrip("0").removesuffix(".") if places else text


def quantity(value: float) -> str:
    """Return a number with at least two digits, as 4.2, 1,234 or 56.7 M."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            scaled = value / size
            return f"{digits(scaled, 3)} {unit}" if scaled < 99.95 else f"{scaled:,.0f} {unit}"
    return factor(value) if value < 9.95 else f"{value:,.0f}"


def numbered(advice: str | None, steps: Sequence[str]) -> list[str]:
    """Return the lines of an advice: several steps have numbers. A daemon of an older version sends no steps."""
    return [f"{n}. {step}" for n, step in enumerate(steps, 1)] if len(steps) > 1 else [advice] if advice else []


def slow_words(times: float, ranks: int | None) -> str:
    """Return how long a slow rank works."""
    return f"works {factor(times)} times as long as the {'other' if ranks == 2 else 'median'} rank"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'' if count == 1 else ending}"


def runs(numbers: Iterable[int]) -> list[str]:
    """Return numbers in their order, as ["0-2", "5"]."""
    found = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    return [
        f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0])
        for run in ([number for _, number in each] for _, each in found)
    ]
