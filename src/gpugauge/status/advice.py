"""The advice on a process: what to change, with the expected gain. Every view shows the rows of this table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from gpugauge.base.text import whole
from gpugauge.faults.repair import Site
from gpugauge.node import training
from gpugauge.node.node import Gain, Node
from gpugauge.sessions.inquiry import ENDED, SILENT
from gpugauge.status import measured_advice
from gpugauge.status.history import is_wasted, lost_of
from gpugauge.status.measured_advice import CROWDED, FILLED_BY_BATCH, Subject
from gpugauge.status.model import Advice, ProcessStatus, Use
from gpugauge.status.standstill import words as words_of
from gpugauge.status.words import (
    IDLE_ADVICE,
    RUN_ADVICE,
    STALLED_ADVICE,
    STALLED_ELSEWHERE,
    cause_phrase,
    factor,
    numbered,
    runs,
)
from gpugauge.verdict import loaders
from gpugauge.verdict.causes import BATCHED, CAUSES, UNBOUNDED, Cause, joined, missing
from gpugauge.verdict.gain import LEAST, NARROW
from gpugauge.verdict.mistakes import MISTAKES, Mistake
from gpugauge.verdict.step import LIMITS


def _without(cause: Cause, subject: Subject) -> Advice | None:
    """Return the row of a cause: of what limits the process, and of other causes with a known gain."""
    mains = subject.mains
    on_cpu = subject.process.state == "training_on_cpu"
    # A training on the CPU loses no GPU time: its waits are named, unless it should be on a GPU.
    named, waits_alone = cause.name in mains, on_cpu and not subject.process.limited_by
    if (not named and not waits_alone and (on_cpu or not mains)) or subject.process.state == "held_idle":
        return None
    gain = subject.gain(cause.name)
    change = _change(subject, cause)
    return _advice(cause.name, _GENERAL, change, gain) if change and (gain or named) else None


def _change(subject: Subject, cause: Cause) -> tuple[str, ...]:
    """Return what removes a cause, or makes an unknown one known; () for this one if others gain something instead."""
    if cause.name == "unknown" and subject.process.hook:
        lacking = "; ".join(missing(subject.process.undecidable))
        if lacking:
            return (f"no measured value explains it; missing here, at least in part: {lacking}",)
        gained = any(subject.gain(name) for name in CAUSES if name != "unknown")
        return () if gained else ("no measured value explains it: profile with torch.profiler",)
    measured = measured_advice.BY_CAUSE.get(cause.name)
    found = measured(subject) if measured else None
    return (found,) if isinstance(found, str) else found or cause.steps


def _advice(cause: str | None, topic: str, steps: str | tuple[str, ...], gain: Gain | None = None) -> Advice:
    steps = (steps,) if isinstance(steps, str) else steps
    return Advice(cause, topic, joined(steps), gain, steps)


def _loader(subject: Subject) -> Advice | None:
    """What limits the loader for which the training waits."""
    found, waits = subject.judged.loader if subject.judged else None, subject.process.data_wait_ratio
    if found is None or (waits is not None and waits < loaders.LEAST):
        return None
    change = measured_advice.diagnosed_change(subject, found)
    topic = CROWDED if found.reason in loaders.FOR_CPUS else "loader"
    speedup, lower = found.speedup, found.lower
    if speedup is None or lower is None or speedup < LEAST:
        return _advice("data_loading", topic, change)
    without = subject.gain("data_loading")
    # The number of workers has a gain of its own, also where that of a loader without any wait is not decided.
    after = "data_loading" if found.reason == loaders.SLOW_BATCHES else without.next if without else ""
    gain = subject.within("data_loading", Gain(speedup, lower, speedup, after))
    return _advice("data_loading", topic, change, gain)


def _stalled(subject: Subject) -> Advice | None:
    if subject.process.state != "stalled":
        return None
    pid = subject.process.pid
    text = STALLED_ADVICE.format(pid) if pid else STALLED_ELSEWHERE
    if subject.behind:
        text = _of_ranks(subject.behind, subject.site)
    elif pid and subject.process.standstill:
        other = "" if subject.complete else "they may wait for one on another node, which TrainingRankBehind names; "
        text = f"{other}see where each rank is: {subject.site.command(f'stack {pid}')}"
    return _advice(None, "stalled", text)


def _of_ranks(behind: Sequence[ProcessStatus], site: Site) -> str:
    """Return what to do about the ranks for which the others wait: of several, about those that do the same as the
    first. A command is last: people copy the rest of the line.
    """
    does = [words_of(process.standstill, many=True) for process in behind if process.standstill]
    alike = [process for process, its in zip(behind, does, strict=True) if its == does[0]]
    many, pids = len(alike) > 1, [str(process.pid) for process in alike if process.pid]
    first = behind[0].standstill
    assert first is not None
    found = f"the others wait for rank{'s' * many} {', '.join(runs(process.rank or 0 for process in alike))}"
    found += f", which {words_of(first, many=many)}"
    if first.position == ENDED:
        return f"{found}: see its log, and start the job again from its last checkpoint"
    if not pids:
        return f"{found}; {STALLED_ELSEWHERE}"
    if first.stopped:
        return f"{found}: kill -CONT {' '.join(pids)}"
    dump = f"py-spy dump --native --pid {pids[0]}"
    return f"{found}: {dump if first.position == SILENT else site.command(f'stack {pids[0]}')}"


def _crowded(subject: Subject) -> Advice | None:
    return _advice(None, CROWDED, measured_advice.crowded(subject)) if CROWDED in subject.mains else None


def _idle(subject: Subject) -> Advice | None:
    idle = subject.process.state == "held_idle" and subject.process.level == "bad"
    return _advice(None, "idle", IDLE_ADVICE) if idle else None


def _hook(subject: Subject) -> Advice | None:
    return _advice(None, "hook", RUN_ADVICE) if subject.process.state_words == "no hook" else None


def _known(mistake: Mistake, subject: Subject) -> Advice | None:
    return _advice(None, mistake.name, mistake.change) if subject.makes(mistake.name) else None


def _on_memory(
    topic: str, cause: str | None, change: Callable[[Subject], str | tuple[str, ...] | None], subject: Subject
) -> Advice | None:
    """Return a row about the memory. `cause` is what the change removes, or a cause of small batches if `""`."""
    text = change(subject)
    removed = next(filter(FILLED_BY_BATCH.__contains__, subject.mains), None) if cause == "" else cause
    return _advice(removed, topic, text, subject.gain(removed) if removed else None) if text else None


SOURCES: tuple[Callable[[Subject], Advice | None], ...] = (
    *(partial(_without, cause) for cause in CAUSES.values()),
    *(_loader, _stalled, _crowded, _idle, _hook),
    partial(_on_memory, "batch", "", measured_advice.larger_batch),
    partial(_on_memory, "fragmentation", "memory_pressure", measured_advice.fragmentation),
    partial(_on_memory, "swap", "memory_swap_io", measured_advice.swapped),
    partial(_on_memory, "memory_growth", None, measured_advice.growth),
    partial(_on_memory, "host_memory_growth", None, measured_advice.host_growth),
    *(partial(_known, mistake) for mistake in MISTAKES),
)
"""A row is a pure function to at most one advice."""

_WIDE = 4.0  # upper bound by lower bound of a gain from which on the upper one says nothing
_LITTLE = 1.2  # a lower bound below this one says no more than 1
_LARGE = 2.0  # a gain that is worth a change beside the first one
_GENERAL = "limit"  # the topic that says least: another advice on the same cause replaces it
_SAME = {CROWDED: "cpu_limited", "loader": "memory_swap_io"}  # by topic, the cause whose advice says the same


def advice_of(subject: Subject) -> list[Advice]:
    """Return the advice on a process, first that on the causes that are named, then by gain, then as in the table."""
    found = [advice for source in SOURCES if (advice := source(subject))]
    special = {advice.cause for advice in found if advice.topic != _GENERAL}
    kept = [advice for advice in found if advice.topic != _GENERAL or advice.cause not in special]
    for_cpus = {measured_advice.crowded(subject), measured_advice.cpu_limited(subject)}
    about_loading = [a.cause == "data_loading" and a.change in for_cpus for a in kept]
    kept = [replace(a, topic=CROWDED) if same else a for a, same in zip(kept, about_loading, strict=True)]
    loader, causes = subject.judged.loader if subject.judged else None, {advice.cause for advice in kept}
    said = {topic for topic, cause in _SAME.items() if cause in causes}
    if not loader or loader.reason != loaders.MEMORY:
        said.discard("loader")
    if any(advice.topic == CROWDED and advice.cause for advice in kept):
        kept = [advice for advice in kept if advice.topic != CROWDED or advice.cause]
    kept = [replace(advice, most=_most(advice, subject)) for advice in kept if advice.topic not in said]
    places = {cause: place for place, cause in enumerate(subject.mains)}
    return sorted(
        kept, key=lambda a: (places.get(a.cause or a.topic, len(places)), -a.gain.expected if a.gain else 0.0)
    )


def by_cause(process: str, devices: Collection[str], node: Node, site: Site) -> dict[str, str]:
    """Return what to do by cause about a judged process on these GPUs, as the views say it, the main cause first."""
    judged, session = node.judged[process], node.sessions.get(process)
    if judged.early:
        return {}
    verdict, facts = judged.verdict, session.facts if session else {}
    shown = ProcessStatus(
        process=process,
        hook=session is not None,
        state=verdict.state,
        limited_by=verdict.limited_by,
        causes=verdict.causes,
        undecidable=tuple(sorted(verdict.undecidable)),
        world_size=whole(facts.get("world_size")),
        loader=training.loader_options(session) if session else {},
        data_wait_ratio=judged.shares.get("data"),
        rest_shares=judged.rest,
        level="poor" if is_wasted(lost_of(judged), before=False) else "none",
        devices=dict.fromkeys(devices, Use(None, None)),
    )
    found: dict[str, str] = {}
    for advice in advice_of(Subject.of(shown, node, site)):
        if advice.cause:
            found.setdefault(advice.cause, advice.change)
    return found


def steps_of(found: Sequence[Advice], mains: Sequence[str] = ()) -> list[str]:
    """Return the steps of the first advice, of those on other causes that are named, of those that gain much more, and
    of known mistakes.
    """
    if not found:
        return []
    first, *others = found
    known, mistakes = first.gain.expected if first.gain else 0.0, {mistake.name for mistake in MISTAKES}
    shown, open_ = [*first.steps], {*mains} - {first.cause or first.topic}
    for advice in others:
        if (about := advice.cause or advice.topic) in open_:
            open_.remove(about)
            shown += advice.steps
        elif advice.gain and advice.gain.expected > max(known, _LARGE):
            gain = gain_words(replace(advice.gain, next=""), advice.cause)
            shown += (*advice.steps[:-1], f"{advice.steps[-1]} ({gain})")
        elif advice.topic in mistakes:
            shown += advice.steps
    return shown


def words(found: Sequence[Advice], mains: Sequence[str] = ()) -> str | None:
    """Return the same as one text, numbered where there are several steps; None without advice."""
    steps = steps_of(found, mains)
    return "; ".join(numbered("".join(steps), steps)) or None


def _most(advice: Advice, subject: Subject) -> float | None:
    """Return the factor by which steps are faster at most, from the share of the time that the advice is about."""
    process, share = subject.process, 0.0
    if process.state == "training_on_cpu" and not process.limited_by:
        # A thread that loads its batches itself does so with any number of CPUs.
        own = advice.topic == CROWDED and process.loader.get("workers") == "0"
        share += process.data_wait_ratio or 0.0 if advice.cause == "data_loading" and not own else 0.0
        share += process.rest_shares.get("runnable", 0.0) if advice.topic == CROWDED else 0.0
    elif advice.cause in CAUSES.keys() - UNBOUNDED:
        share = (process.causes or {}).get(advice.cause, process.lost_ratio or 0.0)
    return 1.0 / (1.0 - share) if 0.0 < share < 1.0 else None


def words_of_gain(advice: Advice) -> str | None:
    """Return the gain of an advice in words, or the most that it can be; None if neither is known."""
    gain = advice.gain or (Gain(advice.most, 1.0, advice.most, "") if advice.most else None)
    return gain_words(gain, advice.cause) if gain else None


def gain_words(gain: Gain, cause: str | None) -> str:
    """Return a gain in words. `cause` is what the change removes, if that has a name."""
    expected, lower, upper = map(factor, (gain.expected, gain.lower, gain.upper))
    if lower == factor(1.0) or (gain.lower < _LITTLE and gain.upper > _WIDE * gain.lower):  # it may have no effect
        between = f"up to {upper}"
    elif gain.upper > _WIDE * gain.lower:
        between = f"at least {lower}"
    else:
        between = f"about {expected}" if gain.upper <= NARROW * gain.lower else f"about {lower} to {upper}"
    shown = f"{between} times as many samples/s" if cause in BATCHED else f"steps {between} times as fast"
    if not gain.next:
        return shown
    after = f"limited by {LIMITS[gain.next]}" if gain.next in LIMITS else f"it {cause_phrase(gain.next)}"
    if gain.next == cause:
        after = f"it still {cause_phrase(gain.next)}"
    return f"{shown}, then {after}"
