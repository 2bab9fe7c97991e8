"""Two jobs: what differs in their steps, losses and settings, and which change explains the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpugauge.report.jobs import ReportError
from gpugauge.report.model import VERSION, Report
from gpugauge.report.render import Block, listed, when
from gpugauge.status.words import SIMULATED, cause_phrase, duration, factor, percent, plural, quantity
from gpugauge.wire.shares import parts as worded

_Value = TypeVar("_Value")
_UNEXPLAINED = "No setting that was reported explains it: look for a change in the data, the model or the node."
_OF_REST = frozenset({"running", "asleep"})  # its thread runs or sleeps, also while it waits for its kernels
_SAME = 0.05  # share by which the steps of two equal jobs may differ
_LEAST_STEPS, _LEAST_SECONDS = 5, 10.0  # of each run; a shorter one may have ended before all settings were reported
# The settings that are not reported while they are not in use. Of others, no value is known.
_UNUSED = frozenset({"backend", "parallel", "sharding", "compiled", "grad scaler", "alloc conf", "world size"})
# By part of a step: what the names of the settings that change it begin with, those that change it most first.
_CHANGES: Mapping[str, tuple[str, ...]] = {
    "data": ("loader workers", "loader batch size", "loader "),
    "peers": ("sharding", "parallel", "backend", "world size", "GPUs"),
    "rest": (
        *("autocast", "matmul dtype", "tf32", "compiled", "GPU", "deterministic", "cudnn", "loader batch size"),
        *("sharding", "parallel", "allocator", "alloc conf", "grad scaler", "batch device", "torch", "cuda"),
    ),
    "compiling": ("compiled", "torch"),
    "runnable": ("loader workers",),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of values, the first of job A; a setting that one does not use is ""."""

    a: str
    b: str
    step_seconds: tuple[float | None, float | None]
    samples_per_second: tuple[float | None, float | None]  #: of all ranks
    parts: Mapping[str, tuple[float, float]]  #: seconds of a step by part
    lost: Mapping[str, tuple[float, float]]  #: share of the held GPU time by cause
    settings: Mapping[str, tuple[str, str]]  #: those that differ, and are known of both
    answer: Sequence[str]  #: in sentences
    version: int = VERSION


def compare(a: Report, b: Report) -> Comparison:
    """Return what differs between two runs. Raises ReportError if one of them is more than one run."""
    both = a, b
    divided = all(each.rest_shares for each in both)
    for each in both:
        if each.parallel:
            many = f"{len(each.parallel)} runs of {each.title} overlapped"
            raise ReportError(f"{many}, and each can have slowed the others: the report on it lists them")
    seconds = (
        {part: share * (each.step_seconds or 0.0) for part, share in _parts(each, divided=divided).items()}
        for each in both
    )
    parts = {part: pair for part, pair in _both(seconds, 0.0).items() if any(pair)}
    hours = (each.gpu_hours for each in both)
    lost = ({cause: lost / of.held for cause, lost in of.lost.items()} if of and of.held else {} for of in hours)
    of_gpus = ({"GPUs": str(each.devices), "GPU": ", ".join(filter(None, each.products))} for each in both)
    settings = ({**gpus, **each.settings} for gpus, each in zip(of_gpus, both, strict=True))
    pairs, unused = _both(settings, "").items(), _UNUSED if a.settings and b.settings else ()
    changed = {name: (x, y) for name, (x, y) in pairs if x != y and ((x and y) or name in unused)}
    a_words, b_words = (f"{each.title}, {duration(each.end - each.begin)} from {when(each.begin)}" for each in (a, b))
    answer = _answer(a, b, parts, changed)
    if a.programs and b.programs and not {*a.programs} & {*b.programs}:
        names = " and ".join(listed(each.programs) for each in both)
        first = f"They are different programs ({names}): their steps may not be the same work."
        answer = [first, *(line for line in answer if line != _UNEXPLAINED)]
    answer = [SIMULATED] * (a.simulated or b.simulated) + answer
    times, rates = (a.step_seconds, b.step_seconds), (_samples(a), _samples(b))
    return Comparison(a_words, b_words, times, rates, parts, _both(lost, 0.0), changed, answer)


def _parts(of: Report, *, divided: bool) -> dict[str, float]:
    """Return the shares of the parts of a step, the rest `divided` by what the training thread does in it."""
    return {**of.step_shares, **of.rest_shares, "rest": 0.0} if divided else dict(of.step_shares)


def _both(two: Iterable[Mapping[str, _Value]], absent: _Value) -> dict[str, tuple[_Value, _Value]]:
    a, b = two
    return {name: (a.get(name, absent), b.get(name, absent)) for name in {**a, **b}}


def _answer(
    a: Report, b: Report, parts: Mapping[str, tuple[float, float]], changed: Mapping[str, tuple[str, str]]
) -> list[str]:
    if not a.step_seconds or not b.step_seconds:
        return ["The steps cannot be compared: those of one job are not known."]
    short = [
        f"{name} made {plural(round(each.steps or 0), 'step')} in {duration(_spent(each))}"
        for name, each in (("A", a), ("B", b))
        if (each.steps or 0) < _LEAST_STEPS or _spent(each) < _LEAST_SECONDS
    ]
    if short:
        needed = f"each run needs {_LEAST_STEPS} steps and {duration(_LEAST_SECONDS)} of them"
        return [f"Too short to compare: {', '.join(short)}; {needed}."]
    batch = _batches(a, b)
    parts = {part: (before, after / batch) for part, (before, after) in parts.items()}
    times = b.step_seconds / batch / a.step_seconds
    if batch != 1:
        rates = [quantity(_samples(of) or 0.0) for of in (a, b)]
        per = f"{rates[1]} samples/s in place of {rates[0]}; a step has {factor(batch)} times as many"
    if abs(times - 1) < _SAME:
        same = f"B makes {per}" if batch != 1 else f"a step takes as long ({duration(b.step_seconds)})"
        return [f"No change: {same}."]
    more = times > 1
    word = f"takes {factor(times)} times as long" if more else f"is {factor(1 / times)} times as fast"
    lines = [f"A step of B {word}: {duration(b.step_seconds)} in place of {duration(a.step_seconds)}."]
    if batch != 1:
        word = f"needs {factor(times)} times as long" if more else f"is {factor(1 / times)} times as fast"
        lines = [f"B {word}: {per}. What follows is of as many samples as a step of A has."]
    rise = {part: (after - before) * (1 if more else -1) for part, (before, after) in parts.items()}
    part = max(rise, key=lambda each: rise[each], default=None)
    if part is None or rise[part] <= 0:
        return [*lines, "The parts of the steps are not known."]
    words = _words(parts)
    before, after = map(duration, parts[part])
    of = rise[part] / abs(b.step_seconds / batch - a.step_seconds)
    share = "All" if of >= 0.995 else percent(of)
    against = min(rise, key=lambda each: rise[each])
    if rise[against] < -_SAME * min(a.step_seconds, b.step_seconds / batch):
        other = f"{words.get(against, against)}: {' → '.join(map(duration, parts[against]))}"
        lines.append(f"Most of the difference is {words.get(part, part)}: {before} → {after}; against it {other}.")
    else:
        lines.append(f"{share} of the difference is {words.get(part, part)}: {before} → {after}.")
    found = [
        name
        for prefix in _CHANGES.get("rest" if part in _OF_REST else part, ())
        for name in changed
        if name.startswith(prefix) and _may_explain(name, changed[name], longer=more, whole=batch == 1)
    ]
    if found:
        each = [f"{name} {changed[name][0] or 'none'} → {changed[name][1] or 'none'}" for name in dict.fromkeys(found)]
        lines.append(f"The change that explains it: {', '.join(each[:3])}.")
    else:
        lines.append(_UNEXPLAINED)
    return lines


def _samples(of: Report) -> float | None:
    return of.samples / spent if of.samples and (spent := _spent(of)) else None


def _batches(a: Report, b: Report) -> float:
    """Return by how many times the steps of B have more samples, 1 if they are alike, or if that is not known."""
    known = [of.samples / of.steps for of in (a, b) if of.samples and of.steps]
    times = known[1] / known[0] if len(known) == 2 else 1.0
    return times if abs(times - 1) >= _SAME else 1.0


def _may_explain(name: str, pair: tuple[str, str], *, longer: bool, whole: bool) -> bool:
    """Return whether a change of a number can have this effect: fewer workers make nothing shorter, and larger batches
    make `whole` steps longer, but the share of each sample shorter.
    """
    before, after = (int(value) if value.isdecimal() else None for value in pair)
    if before is None or after is None or name not in {"loader workers", "loader batch size"}:
        return True
    return (after > before) == (longer if name == "loader batch size" and whole else not longer)


def _spent(of: Report) -> float:
    return (of.steps or 0.0) * (of.step_seconds or 0.0)


def _words(parts: Iterable[str]) -> dict[str, str]:
    ones = dict.fromkeys([*parts, "rest"], 1.0)
    return {name: text for name, text, _ in (*worded(ones), *worded({}, ones))}


def blocks(found: Comparison) -> list[Block]:
    """Return the comparison for people."""
    words = _words(found.parts)
    steps = [("", "A", "B"), ("a step", *(duration(each) if each else "-" for each in found.step_seconds))]
    if any(found.samples_per_second):
        steps.append(("samples/s", *(quantity(each) if each else "-" for each in found.samples_per_second)))
    steps += [(f"  {words.get(part, part)}", *map(duration, pair)) for part, pair in found.parts.items()]
    lost = [(cause_phrase(cause), *map(percent, pair)) for cause, pair in found.lost.items() if max(pair) >= 0.005]
    settings = [(name, a or "-", b or "-") for name, (a, b) in found.settings.items()]
    tables = [
        Block("Steps", table=steps, numbers=frozenset({1, 2})),
        Block("Lost GPU time", table=[("the training", "A", "B"), *lost], numbers=frozenset({1, 2})),
        Block("Settings that differ", table=[("setting", "A", "B"), *settings]),
    ]
    first = Block("Two runs", [f"A: {found.a}.", f"B: {found.b}.", *found.answer])
    return [first, *(table for table in tables if len(table.table) > 1)]
