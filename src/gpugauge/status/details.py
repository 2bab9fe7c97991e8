"""The facts about one process in a few words, for every view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpugauge.base.serving import IDLE_SECONDS
from gpugauge.status.model import GpuStatus, Inside, ProcessStatus
from gpugauge.status.owner import who
from gpugauge.status.standstill import words
from gpugauge.status.words import (
    cause_phrase,
    duration,
    largest,
    loader_advice,
    percent,
    plural,
    quantity,
    since_words,
    slow_words,
)
from gpugauge.verdict.savings import LEAST_SHARE
from gpugauge.verdict.states import MIN_EVIDENCE_SECONDS, STALLED_SECONDS, STALLED_STEPS
from gpugauge.wire.shares import sentence

JUDGED_SECONDS = MIN_EVIDENCE_SECONDS + 10.0  # until the verdict: two intervals later than the evidence is enough
FOR_DATA, FOR_CPU, FOR_PEERS = "waits for data", "waits for a CPU", "waits for slower ranks"
_NAMED_RATIO = 0.2  # a wait that takes less is not named beside a longer one
_MIN_SHOWN_RATIO = 0.005  # a smaller share is 0 %
_SILENT = (
    "no hook report reaches this daemon: it has made no step or batch yet, or its GPUGAUGE_HOOK_SOCKET is not the "
    "hook.socket of the daemon"
)
_QUIET_SECONDS = 60.0  # without a step, from which on it is said
_LATE_SECONDS, _LATE_STEPS = 10.0, 2.0  # a last step that is younger, or not longer ago than steps take, is no news
_TRAINING = frozenset({"training", "training_on_cpu"})
_MAX_NAMED = 3  # processes of a GPU that is down


def details(process: ProcessStatus, now: float) -> list[str]:
    """Return what the hook reports of a process, such as its step time. `now` is Unix time."""
    if process.ended is not None:
        return _ended(process, process.ended, now)
    if process.silent:
        return [_SILENT]
    if process.starting:
        return ["starting: the hook has not reported a step or batch yet"]
    idle = f"idle {since_words(process.trouble_since)}, a problem after {duration(IDLE_SECONDS)}"
    resting = process.state == "held_idle" and process.level == "none" and process.trouble_since is not None
    return [*([idle] if resting else []), *_running(process, now)]


def _running(process: ProcessStatus, now: float) -> list[str]:
    found = []
    if process.judging_since is not None:
        found.append("not judged yet")
    if process.step_seconds is not None:
        found.append(f"step {duration(process.step_seconds)}")
    rates = {"samples": process.samples_per_second, "tokens": process.tokens_per_second}
    found += [f"{quantity(rate)} {kind}/s" for kind, rate in rates.items() if rate is not None]
    found += [f"MFU {percent(process.mfu)}"] if process.mfu is not None else []
    if process.phase and not (process.state or "").startswith(process.phase):
        found.append(f"phase {process.phase.replace('_', ' ')}")
    # A training on a GPU that runs has nothing to say of its thread.
    waiting = sum(share for state, share in process.rest_shares.items() if state != "running")
    if process.step_shares and (process.state == "training_on_cpu" or waiting >= LEAST_SHARE):
        found.append(sentence(process.step_shares, process.rest_shares))
    elif (waits := process.data_wait_ratio or 0.0) >= _MIN_SHOWN_RATIO:
        found.append(f"{percent(waits)} waiting for data")
    inside = process.inside or Inside()
    counts = {"out-of-memory errors": inside.ooms, "retries of the allocator": inside.alloc_retries}
    found += [f"{count:.0f} {words}" for words, count in counts.items() if count]
    if process.rank is not None and (process.world_size or 1) > 1:
        longer = f": it {slow_words(process.slowness, process.world_size)}" if process.slowness else ""
        found.append(f"rank {process.rank} of {process.world_size}{longer}")
    if process.standstill:
        held = ": the other ranks here wait for it" if process.standstill.behind else ""
        found.append(f"{words(process.standstill)}{held}")
    if loader := _loader(process.loader):
        found.append(f"loader: {loader}")
    return [*found, *filter(None, [_no_step(process, now) or _last_step(process, now)])]


def _last_step(process: ProcessStatus, now: float) -> str:
    last, each = process.last_step, process.step_seconds
    if last is None or now - last < _LATE_SECONDS or (each is not None and now - last < _LATE_STEPS * each):
        return ""
    return f"last step {duration(now - last)} ago"


def _no_step(process: ProcessStatus, now: float) -> str:
    """Return for how long a training has made no step, "" if that is not long for its steps, or is said otherwise."""
    last, each = process.last_step, process.step_seconds
    if last is None or each is None or process.state not in _TRAINING:
        return ""
    seconds, late = now - last, max(STALLED_SECONDS, STALLED_STEPS * each)
    later = f"; by default stalled after {duration(late)}" if seconds < late else ""
    shown = f"no step for {duration(seconds)} (its steps take {duration(each)}){later}"
    return shown if seconds >= max(_QUIET_SECONDS, STALLED_STEPS * each) else ""


def _ended(process: ProcessStatus, at: float, now: float) -> list[str]:
    why = f": {process.end_words}" if process.end_words else ""
    found = [f"ended {duration(max(0.0, now - at))} ago{why}"]
    if process.steps:
        each = f", {duration(process.step_seconds)} each" if process.step_seconds is not None else ""
        found.append(f"{plural(round(process.steps), 'step')}{each}")
    if process.step_shares:
        found.append(f"in all {sentence(process.step_shares, process.rest_shares)}")
    return found


def no_limit(process: ProcessStatus, now: float) -> str:
    """Return what is said in place of a limit: that it makes no step, or is not judged yet; "" of others."""
    if (still := _no_step(process, now)) or process.judging_since is None:
        return still
    waits = process.data_wait_ratio or 0.0
    so_far = f"; so far {percent(waits)} waiting for data" if waits >= _MIN_SHOWN_RATIO else ""
    return f"not judged yet (a verdict takes {duration(JUDGED_SECONDS)} of reports){so_far}"


def remark(process: ProcessStatus, *, listed: bool = False) -> str:
    """Return what limits a process, with its share, or what makes its causes decidable; "" if nothing does. `listed` is
    whether a problem above has said the cause.
    """
    ratio, cause = loss(process)
    causes = sorted((process.causes or {}).items(), key=lambda cause: -cause[1])
    each = ", ".join(f"{percent(share)} {cause_phrase(name)}" for name, share in causes) if causes[1:] else ""
    lost = f"{percent(ratio)} of its GPU time is lost{each and f' ({each})'}" if ratio is not None else ""
    said = ": ".join(filter(None, ("" if listed else cause, lost)))
    return said if cause else loader_advice(process.undecidable, process.data_wait_ratio)


def named_loss(process: ProcessStatus) -> float | None:
    """Return the share of its GPU time that a process loses to what the views name, None if it is not known."""
    causes, name = process.causes or {}, process.limited_by
    named = [causes[each] for each in largest(name, causes) or [name or ""] if each in causes]
    return sum(named) if named and process.lost_ratio is not None else process.lost_ratio


def loss(process: ProcessStatus) -> tuple[float | None, str]:
    """Return the share of its GPU time that a process loses, and what limits it, as far as known. One that trains on
    the CPU uses no GPU, and so loses none of its time.
    """
    if process.state != "training_on_cpu":
        return process.lost_ratio, process.limited_by_words or ""
    waits = waits_longest(process)
    return None, process.limited_by_words or (waits_words(waits) if waits else "")


def is_lossless(process: ProcessStatus) -> bool:
    """Return whether each cause of a training that is judged takes less than LEAST_SHARE of its GPU time."""
    decided = process.hook and process.causes == {} and not process.undecidable
    return decided and process.state == "training" and not process.limited_by and process.judging_since is None


def all_waits(shares: Mapping[str, float], rest: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return what a training waits for, in words, and the shares of its time, the longest first."""
    waits = {FOR_DATA: shares.get("data", 0.0), FOR_CPU: rest.get("runnable", 0.0)}
    return sorted((waits | {FOR_PEERS: shares.get("peers", 0.0)}).items(), key=lambda item: -item[1])


def waits_of(process: ProcessStatus) -> list[tuple[str, float]]:
    """Return the same of a process."""
    return all_waits({**process.step_shares, "data": process.data_wait_ratio or 0.0}, process.rest_shares)


def longest_wait(process: ProcessStatus) -> tuple[str, float]:
    """Return what a training waits for most, in words, and the share of its time."""
    return waits_of(process)[0]


def waits_longest(process: ProcessStatus) -> list[tuple[str, float]]:
    """Return the waits to name of a training on the CPU that waits for most of its time, else none."""
    suffers = process.state == "training_on_cpu" and not process.limited_by and process.level == "poor"
    return named_waits(waits_of(process)) if suffers else []


def named_waits(waits: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return those of some waits, the longest first, that are large enough to be named."""
    return [wait for place, wait in enumerate(waits) if not place or wait[1] >= _NAMED_RATIO]


def waits_words(waits: Sequence[tuple[str, float]]) -> str:
    """Return waits with their shares, as "waits for data 47 % of its time, and for a CPU 36 %"."""
    first, *more = [f"{words} {percent(share)}" for words, share in waits]
    return ", and ".join([f"{first} of its time", *(words.removeprefix("waits ") for words in more)])


def last_use(gpu: GpuStatus) -> str:
    """Return who used a GPU that is down when it answered last, "" if that is not known."""
    processes = gpu.last_processes
    if not processes:
        return ""
    named = [who(process, "" if process.alive else "not seen now") for process in processes[:_MAX_NAMED]]
    more = len(processes) - len(named)
    return f"last used by {', '.join(named)}" + (f" and {more} more" if more else "")


def _loader(options: Mapping[str, str]) -> str:
    words = []
    if workers := options.get("workers"):
        words.append(f"{workers} worker{'' if workers == '1' else 's'}")
    if options.get("batch_size"):
        words.append(f"batch {options['batch_size']}")
    if pinned := options.get("pin_memory"):
        words.append("pinned" if pinned == "yes" else "not pinned")
    if options.get("prefetch"):
        words.append(f"prefetch {options['prefetch']}")
    return ", ".join(words)
