"""The problems of a node, the gravest first, each with what to do, and the states of its GPUs that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter

from gpugauge.driver.api import SUSPENDED
from gpugauge.faults.repair import Need, Site
from gpugauge.faults.table import FAULTS
from gpugauge.status.details import FOR_DATA, named_loss, named_waits, waits_longest, waits_of, waits_words
from gpugauge.status.gpu_problems import gpu_problems, processes_words, repair
from gpugauge.status.measured_advice import CROWDED
from gpugauge.status.model import GpuStatus, Problem, ProcessStatus, Status
from gpugauge.status.owner import job_key, name, owner_words
from gpugauge.status.problem import order, problem
from gpugauge.status.use import gpus_words, in_use, is_idle, judging, on_gpus, silent, unhooked, used_well
from gpugauge.status.words import percent, plural, since_words

_CLOSE = 0.1  # shares of lost time that differ by less are the same
_USED_LOAD = 0.01  # a GPU that is less busy over five minutes is not used


def training_problems(facts: Status) -> Iterator[Problem]:
    """Yield a problem for each program of an owner, cause and advice; ranks of one training are together."""
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    processes: dict[str, ProcessStatus] = {}
    used: dict[str, list[str]] = {}
    for gpu in facts.gpus:
        # The processes of a GPU that is down may still run, stalled.
        for process in (*gpu.processes, *(p for p in gpu.last_processes or () if p.alive)):
            processes[process.process] = process
            load = process.load_5m
            if process.limited_by != "unused_gpus" or load is None or load < _USED_LOAD:
                used.setdefault(process.process, []).append(gpu.uuid)
    processes |= {process.process: process for process in facts.without_gpu}
    place = {uuid: number for number, uuid in enumerate(gpus)}
    failing = [process for process in processes.values() if process.level in {"bad", "poor"}]
    group_of = partial(_group, there="a simulated GPU" if facts.simulated else "a GPU")
    groups = groupby(sorted(failing, key=group_of), key=group_of)
    for (who, text, kind, *_), ranks in ((key, alike) for key, group in groups for alike in _alike([*group])):
        held = list(dict.fromkeys(uuid for rank in ranks for uuid in used.get(rank.process, [])))
        held.sort(key=place.__getitem__)
        since = min((rank.trouble_since for rank in ranks if rank.trouble_since), default=None)
        found = _problem(who, text, kind, ranks, [gpus[uuid] for uuid in held])
        yield replace(found, since_words=since_words(since))


def _alike(programs: Sequence[ProcessStatus]) -> Iterator[list[ProcessStatus]]:
    """Yield the ranks of a training, and each time processes that lose about as much and have the same advice."""

    def key(process: ProcessStatus) -> tuple[str, float]:
        if (process.world_size or 1) > 1:
            return "", 0.0
        return (process.advice or "").replace(str(process.pid), "pid"), process.lost_ratio or _waited(process)

    for _, same in groupby(sorted(programs, key=key), key=lambda process: key(process)[0]):
        left = [*same]
        while left:
            alike = [each for each in left if key(each)[1] - key(left[0])[1] <= _CLOSE]
            yield alike
            left = left[len(alike) :]


def _waited(process: ProcessStatus) -> float:
    return sum(share for _, share in waits_of(process))


def _problem(who: str, text: str, kind: str, ranks: list[ProcessStatus], held: list[GpuStatus]) -> Problem:
    first = ranks[0]
    # Without a GPU in use no GPU time is lost.
    on_gpu = [rank for rank in ranks if rank.state != "training_on_cpu"]
    total, ratio = (_mean(map(share, on_gpu)) for share in (attrgetter("lost_ratio"), named_loss))
    if kind == "waits":
        of_all = [dict(waits_of(rank)) for rank in ranks]
        means = {words: sum(waits[words] for waits in of_all) / len(of_all) for words in of_all[0]}
        named = named_waits(sorted(means.items(), key=lambda item: -item[1]))
        # The advice is about CPUs then.
        crowded = first.changes and first.changes[0].topic == CROWDED and [words for words, _ in named] == [FOR_DATA]
        text = waits_words(named) + (", whose loading waits for a CPU" if crowded else "")
    slowed = [gpu for gpu in held if any(fault.kind == "gpu_slowed" for fault in gpu.faults)]
    advice, steps = first.advice, first.advice_steps
    if of_fault := first.limited_by == "throttled" and bool(slowed):
        fault = f"the fault{'s' if len(slowed) > 1 else ''} of {gpus_words(slowed)}"
        advice, steps, text = f"see {fault}", (), f"{text}: {fault}"
    pid = f"pid {first.pid}" if first.pid is not None else "pid unknown"
    pid += f" and {plural(len(ranks) - 1, 'more process', 'es')}" if len(ranks) > 1 else ""
    lost = f"{percent(ratio)} of its GPU time is lost" if ratio is not None else ""
    lost += f" to this, {percent(total)} in all" if percent(total) != percent(ratio) else ""
    where = gpus_words(held) if held else ""
    owner = owner_words(first.workload)
    return problem(
        kind,
        who,
        text,
        advice,
        detail=", ".join(filter(None, (lost, pid, owner, where))),
        advice_steps=steps,
        of_fault=of_fault,
        gain_words=first.gain_words,
        gpus=tuple(gpu.uuid for gpu in held),
        processes=tuple(rank.process for rank in ranks),
        ratio=ratio,
        lost_ratio=total,
        runbook=first.runbook,
    )


def _mean(shares: Iterable[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def _group(process: ProcessStatus, there: str) -> tuple[str, ...]:
    return (name(process), *_trouble(process, there), *job_key(process.workload))


def _trouble(process: ProcessStatus, there: str) -> tuple[str, str]:
    state, cause = process.state, process.limited_by
    if state == "training_on_cpu" and not cause:
        return " and ".join(sorted(words for words, _ in waits_longest(process))), "waits"
    if state == "training_on_cpu":
        reason = f", it {process.limited_by_words}" if cause != "model_on_cpu" else ""
        return f"trains on the CPU although there is {there}{reason}", "on_cpu"
    text = {"stalled": "is stalled", "held_idle": "holds its GPU and does not use it"}.get(state or "")
    if text and cause not in {None, "unknown", "unused_gpus"}:
        text += f", it {process.limited_by_words}"
    return text or process.limited_by_words or "", "wasted" if process.level == "bad" else "slowed"


# By kind of the gravest problem, which is no fault of a GPU.
_WORDS = {
    "wasted": "wasted",
    "slowed": "slowed",
    "unjudged": "low load",
    "unused": "not used",
    **dict.fromkeys(("on_cpu", "waits"), "trains on CPU"),
}


def problems(facts: Status, site: Site, needs: Sequence[Need] = ()) -> list[Problem]:
    """Return the problems of a node, the gravest first. Commands are for the site; `needs` repair its GPUs."""
    found = [
        *_driver(facts),
        *_exporter(facts),
        *gpu_problems(facts.gpus, None if facts.simulated else site),
        *repair(facts.gpus, needs, site, facts.without_gpu, simulated=facts.simulated),
        *training_problems(facts),
    ]
    return sorted(found, key=order)


def level(problems: Sequence[Problem], facts: Status) -> str:
    """Return how well a node is: bad, poor, good; none where processes are not judged, or nothing is there to judge."""
    if problems:
        return "bad" if any(problem.grave for problem in problems) else "poor"
    everywhere = [*on_gpus(facts.gpus), *facts.without_gpu]
    idle = not facts.gpus and not any(process.level == "good" for process in everywhere)
    return "none" if idle or unhooked(on_gpus(facts.gpus)) or judging(everywhere) or silent(everywhere) else "good"


def gravest(gpu: GpuStatus, problems: Sequence[Problem]) -> Problem | None:
    """Return the gravest problem of a GPU, None without one. One that a process uses well is not wasted."""
    wasted = not used_well(gpu)
    own = (p for p in problems if gpu.uuid in p.gpus and p.kind != "repair" and (wasted or p.kind != "wasted"))
    return min(own, key=lambda found: not found.grave, default=None)


def _driver(facts: Status) -> Iterator[Problem]:
    driver = facts.driver
    if not driver.up and driver.needed and driver.reason not in {"off", "released", "starting"}:
        yield problem("driver", "Driver", driver.state_words, driver.advice)
    if driver.up and not facts.gpus:
        advice = "check driver.devices, and the device request of the container"
        yield problem("no_gpu", "Driver", "lists no GPU, or the settings exclude all", advice)


def _exporter(facts: Status) -> Iterator[Problem]:
    for collector, error in facts.failing_collectors.items():
        yield problem("collector", f"Collector {collector}", f"fails: {error}" if error else "fails")
    if facts.hook:
        yield problem("hook", "Hook", facts.hook)


def with_state(gpu: GpuStatus, problems: Sequence[Problem]) -> GpuStatus:
    """Return a GPU with level, state in at most 14 characters, and summary: its gravest problem, or its programs."""
    found = gravest(gpu, problems)
    use = "in use" if in_use(gpu) else "unknown" if "processes" in gpu.unread else "free"
    use = "idle" if is_idle(gpu) else use
    use = SUSPENDED if gpu.down_reason == SUSPENDED else use
    if found is None:
        level = "good" if used_well(gpu) else "none"
        return replace(gpu, level=level, state_words=use, summary=_programs([*on_gpus([gpu])]))
    subject = f"{found.subject} " if found.processes else ""
    known = found.runbook != "GpuReadingFailed" or "too_slow" in gpu.unread.values()
    # The mean load and the cause are said once, of all GPUs.
    text = processes_words(gpu) if found.kind == "unjudged" else found.text
    words = _WORDS.get(found.kind) or (FAULTS[found.runbook or ""].word if known else use)
    return replace(gpu, level="bad" if found.grave else "poor", state_words=words, summary=f"{subject}{text}")


def _programs(processes: Sequence[ProcessStatus]) -> str | None:
    if not processes:
        return None
    counts = Counter(map(name, processes)).most_common()
    first, count = counts[0]
    more = len(processes) - count
    return first + (f" ({count})" if count > 1 else "") + (f" and {more} more" if more else "")
