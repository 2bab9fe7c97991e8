"""The report on a job, from what is known of its processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, combinations

from gpugauge.base import serving
from gpugauge.base.text import whole
from gpugauge.exposition import trainings as names
from gpugauge.exposition.trainings import HELD, LIMITED_BY, LOST, PROCESS, STEP
from gpugauge.node.node import Gain
from gpugauge.report import jobs
from gpugauge.report.counters import Facts
from gpugauge.report.curves import drawn
from gpugauge.report.jobs import Found, ReportError
from gpugauge.report.model import Change, GpuHours, JobId, ProcessUse, Report
from gpugauge.report.prices import NO_PRICES, Prices
from gpugauge.report.render import listed, when
from gpugauge.report.source import NO_SERVER, Prometheus, Range
from gpugauge.report.unknown import gaps
from gpugauge.status.advice import gain_words
from gpugauge.status.ended import end_words
from gpugauge.status.words import IDLE_ADVICE
from gpugauge.verdict.causes import CAUSES, UNEXPLAINED
from gpugauge.verdict.gain import LEAST
from gpugauge.verdict.loaders import BUSY_CPUS, CHANGES, FOR_CPUS
from gpugauge.verdict.mistakes import MISTAKES
from gpugauge.wire.shares import divided, queued, shares, with_waits

_NO_FACTOR = {"unknown", "unused_gpus"}  # what is advised does not remove the loss
_LEAST = 0.02  # share of the held time below which nothing is advised
_WORTH = 0.1  # share of the held time from which the advice on a known cause comes before that on an unknown one


def report(job: JobId, found: Found, now: float, prices: Prices = NO_PRICES, source: Prometheus = NO_SERVER) -> Report:
    """Return the report on all processes that were found at a source."""
    facts = found.facts
    uses = sorted((_use(process, found) for process in facts), key=lambda use: (use.node, use.rank or 0, use.begin))
    begin, end = min(use.begin for use in uses), max(use.end for use in uses)
    peaks = [use for use in uses if use.memory_peak_bytes is not None]
    fullest = max(peaks, key=lambda use: (use.memory_peak_bytes or 0) / (use.memory_limit_bytes or 1e15), default=None)
    runs = _merged((use.begin, use.end) for use in uses)
    by_run: defaultdict[int, defaultdict[object, float]] = defaultdict(lambda: defaultdict(float))
    for use in uses:
        run = sum(begin <= use.begin for begin, _ in runs)
        by_run[run][use.process if use.rank is None else use.rank] += use.steps or 0.0
    steps = sum(max(ranks.values()) for ranks in by_run.values())
    # On a busy machine samples come late.
    running = [
        use for use in uses if use.end_words is None and (use.process in found.present or facts[use.process].runs(now))
    ]
    products = by_product(found, facts)
    hours = GpuHours.sum([*products.values()]) if products else None
    joules, left_out = energy(found, facts)
    (step_shares, rest_shares), last = _shares(facts.values()), run_of(found, -1)
    ends = Counter(use.end_words for use in uses if use.end_words and use.process in last.facts)
    made = {name for each in facts.values() for name, share in each.mean(names.MISTAKE).items() if share > 0}
    programs = sorted({found.owners[process].command for process in facts} - {""})
    return Report(
        simulated=found.simulated,
        kind=job.kind,
        namespace=job.namespace,
        job=job.name,
        # A launch is called by the topmost process of the user's session, which may be a shell.
        title=", ".join(programs) if programs and job.kind == "launch" else job.words,
        programs=programs,
        users=sorted({found.owners[process].user for process in facts} - {""}),
        begin=begin,
        end=end,
        runs=len(runs),
        parallel=overlapping(found),
        running=bool(running),
        end_words=[words for words, _ in ends.most_common()],
        nodes=sorted({use.node for use in uses}),
        devices=len({place for process in facts for place in found.of(process)}),
        products={name: product.held for name, product in products.items()},
        gpu_hours=hours,
        change=None if serving.only_serve(programs) else _change(last),
        mistakes=[mistake.change for mistake in MISTAKES if mistake.name in made],
        steps=steps or None,
        samples=sum(known) if (known := [n for each in facts.values() if (n := each.sum(names.SAMPLES))]) else None,
        step_seconds=_step_seconds(facts.values()),
        step_shares=step_shares,
        rest_shares=rest_shares,
        memory_peak_bytes=fullest.memory_peak_bytes if fullest else None,
        memory_limit_bytes=fullest.memory_limit_bytes if fullest else None,
        energy_joules=joules,
        cost=prices.cost(products, joules),
        settings=_settings(facts.values()),
        processes=uses,
        curves=drawn(found, begin, end) if end > begin and source.has_curves else None,
        unknown=[*gaps(found, uses, running, left_out), *prices.missing(products), *sorted(source.warnings)],
    )


def run_of(found: Found, number: int) -> Found:
    """Return the part of the found processes that belongs to one of the runs of their job, -1 for the last."""
    spans = _merged((facts.begin, facts.end) for facts in found.facts.values())
    begin, end = spans[max(number, -len(spans))]
    return replace(found, facts={p: facts for p, facts in found.facts.items() if begin <= facts.begin <= end})


def last_runs(source: Prometheus, name: str, span: Range) -> list[tuple[JobId, Found]]:
    """Return the last two runs of a job, or of a program in any job. Raises RequestError, or ReportError if only one is
    known.
    """
    of = jobs.last_of(source, name, span, 2)
    known = list[tuple[float, JobId, Found]]()
    for job, found in of:
        spans = _merged((facts.begin, facts.end) for facts in found.facts.values())
        known += [(begin, job, run_of(found, number)) for number, (begin, _) in enumerate(spans)]
    known.sort(key=lambda run: run[0])
    if len(known) >= 2:
        return [(job, found) for _, job, found in known[-2:]]
    ((job, found),) = of
    if overlapping(found):
        return [(job, found), (job, found)]
    first = found.owners[min(found.facts, key=lambda process: found.facts[process].begin)]
    which = ", ".join(filter(None, (first.command or job.words, first.pid and f"pid {first.pid}", first.node)))
    shown = name if job.kind == "launch" else job.words
    raise ReportError(
        f"only one run of {shown} is known, since {when(known[0][0])} ({which}): name two jobs, or look further back "
        "with --since"
    )


def overlapping(found: Found) -> list[str]:
    """Return the processes that trained while another one did that runs the same program and is no rank beside it."""
    spans: defaultdict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for process, facts in found.facts.items():
        reported, owner = facts.info(PROCESS), found.owners[process]
        if reported and reported.get("world_size", "") in {"", "1"}:
            # Its begin and end are known to a sample.
            spans[owner.node, owner.command].append((facts.begin, facts.end - facts.interval, process))
    alike = [(a, b) for each in spans.values() for a, b in combinations(sorted(each), 2) if b[0] < a[1]]
    return sorted({process for pair in alike for *_, process in pair})


def _hours(facts: Facts, share: float = 1.0) -> GpuHours | None:
    held, lost = facts.sum(HELD), facts.by(LOST)
    return None if held is None else GpuHours.of(share * held, {cause: share * lost[cause] for cause in lost})


def by_product(found: Found, processes: Iterable[str]) -> dict[str, GpuHours]:
    """Return the GPU hours of processes by product, "" where that is not known; of those that have any."""
    parts: defaultdict[str, list[GpuHours]] = defaultdict(list)
    for process in processes:
        products = [found.devices[place].product for place in found.of(process)] or [""]
        if hours := _hours(found.facts[process], 1 / len(products)):
            for product in products:
                parts[product].append(hours)
    return {product: GpuHours.sum(each) for product, each in sorted(parts.items())}


def energy(found: Found, processes: Iterable[str]) -> tuple[float | None, int]:
    """Return the joules of the GPUs of processes while they ran, None if not known, and how many GPUs are left out."""
    ours = set(processes)
    spans: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for process in ours:
        for place in found.of(process):
            spans[place].append((found.facts[process].begin, found.facts[process].end))
    by_gpu = [[found.devices[place].joules(*span, ours) for span in _merged(each)] for place, each in spans.items()]
    known = [joules for each in by_gpu for joules in each if joules is not None]
    return sum(known) if known else None, sum(None in each for each in by_gpu)


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the ranges of time that others cover, none of it twice."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def _use(process: str, found: Found) -> ProcessUse:
    facts, owner = found.facts[process], found.owners[process]
    reported, ended = facts.info(PROCESS), facts.info(names.END)
    peaks, limits = (
        {key[0]: max(v for _, v in p) for key, p in facts.of(name).items()} for name in (names.PEAK, names.LIMIT)
    )
    peaks = peaks or {key[0]: max(v for _, v in points) for key, points in facts.of(names.MEMORY).items()}
    fullest = max(peaks, key=lambda uuid: peaks[uuid], default=None)
    return ProcessUse(
        process=process,
        node=owner.node,
        command=owner.command,
        rank=whole(reported.get("rank")),
        hook=bool(reported),
        devices=[uuid for _, uuid in found.of(process)],
        begin=facts.begin,
        end=facts.end,
        uncounted_seconds=facts.uncounted,
        end_words=end_words(ended["reason"], ended["exit_code"], ended["signal"]) or None if ended else None,
        gpu_hours=_hours(facts),
        steps=facts.sum(names.STEPS),
        step_seconds=_step_seconds([facts]),
        step_shares=_shares([facts])[0],
        memory_peak_bytes=peaks[fullest] if fullest is not None else None,
        memory_limit_bytes=limits.get(fullest or ""),
    )


def _step_seconds(facts: Iterable[Facts]) -> float | None:
    seconds, count = (sum(each.sum(f"{STEP}_{part}") or 0.0 for each in facts) for part in ("sum", "count"))
    return seconds / count if count else None


def _shares(facts: Iterable[Facts]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares of the parts of a training, of all ranks together, and those of the rest."""
    phases: Counter[str] = Counter()
    thread: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    peers: list[float] = []
    loading = 0.0
    for each in facts:
        phases.update(each.by(names.PHASES))
        waits.update(each.by(names.DATA_WAIT))
        thread.update(each.of_thread())
        local, steps = each.sum(names.LOCAL_WORK), each.sum(f"{STEP}_sum")
        peers += [max(0.0, steps - local)] if local is not None and steps is not None else []
        loading += _queued(each)
    found = shares(with_waits(phases, waits), waits.get("training"), sum(peers) if peers else None)
    return divided(found, thread, sum(phases.values()) - phases["starting"], loading)


def _queued(facts: Facts) -> float:
    """Return the seconds for which a thread that loads its batches itself waited for a CPU meanwhile; 0 with a GPU."""
    if facts.info(names.LOADER).get("workers") != "0" or facts.sum(names.EXPOSED_WAIT) is not None:
        return 0.0
    counts = (facts.sum(name) or 0.0 for name in (names.LOADED, names.LOADED_MEASURED))
    return queued(facts.by(names.LOADING).get("runqueue"), *counts)


def _change(found: Found) -> Change | None:
    """Return what removes the largest loss of a run, or on the CPU the usual limit."""
    facts, products = [*found.facts.values()], by_product(found, found.facts)
    hours = GpuHours.sum([*products.values()]) if products else GpuHours.of(0.0, {})
    # What no value explains is stated below where something else is worth a change.
    known = (cause for cause, lost in hours.lost.items() if cause != "unknown" and lost >= _WORTH * hours.held)
    cause = next(known, None) or next(iter(hours.lost), None)
    useful = hours.used / hours.held if hours.held else 0.0  # share of the time that is left without any loss
    if not hours.held:
        of_step, of_rest = _shares(facts)
        waits = {"data_loading": of_step.get("data", 0.0), "cpu_limited": of_rest.get("runnable", 0.0)}
        # One rank is slow, and has no such wait.
        waits["waiting_for_peers"] = max((_shares([each])[0].get("peers", 0.0) for each in facts), default=0.0)
        longest = max(waits, key=lambda each: waits[each])
        cause = _usual(facts, LIMITED_BY) or (longest if waits[longest] >= _WORTH else None)
        useful = 1 - waits[cause] if cause in waits else 0.0
    share = hours.lost.get(cause or "", 0.0) / hours.held if hours.held else 0.0
    if cause is None or (hours.held and share < _LEAST):
        return None
    own = {p: each for p, each in found.facts.items() if cause in each.by(LIMITED_BY) or cause in each.by(LOST)}
    own = own or dict(found.facts)
    limited, owners = [*own.values()], [found.owners[process] for process in own]
    left = 1 - share if hours.held else useful
    gain, times = _gain(limited, cause), 1 / left if left > 0 else 1.0
    general = CHANGES[BUSY_CPUS] if cause == "cpu_limited" else CAUSES[cause].advice if cause in CAUSES else cause
    text = _usual(limited, names.ADVICE, cause) or general
    means = ([*chain(*(f.mean(name).values() for f in limited))] for name in names.LOADER_GAINS)
    least, lower = (min(each, default=None) for each in means)
    if (
        cause == "data_loading" and _usual(limited, names.LOADER_LIMIT) in FOR_CPUS
    ):  # another number of workers, which may have been advised for a while, gains nothing
        gain = None
    elif cause == "data_loading" and least and lower:  # the advice is about its number of workers
        gain = Gain(least, lower, least, "") if least >= LEAST else None
    if gain and useful > 0 and cause != "precision_unused":
        expected, lower, upper = (min(each, times) for each in (gain.expected, gain.lower, gain.upper))
        gain = Gain(expected, lower, upper, gain.next if upper * useful < 0.999 else "")
    at_most = gain or (Gain(times, 1.0, times, "") if times > 1 and cause not in _NO_FACTOR else None)
    if cause == "unknown" and not _usual(limited, names.ADVICE, cause) and any(f.info(PROCESS) for f in limited):
        text = UNEXPLAINED
    words = gain_words(at_most, cause) if at_most else None
    unseen = owners[0].ranks - len(facts)
    if cause == "waiting_for_peers" and unseen > 0:
        gain, words = None, words and f"that shows the rank for which the others wait; without these waits, {words}"
        missing = f"{unseen} of its {owners[0].ranks} ranks are not measured"
        command = "put `gpugauge run --` before the command that starts each rank (python, torchrun)"
        text = f"{command}, on nodes with the exporter: {missing}; then {text}"
    if cause == "throttled":
        nodes = sorted({owner.node.partition(":")[0] for owner in owners})
        excluded = f" (sbatch --exclude={','.join(nodes)})" if owners[0].job.kind == "slurm" else ""
        other = f"run the job on another GPU{excluded}: that on {listed(nodes)} is slowed"
        text = f"{other}; also ask the administrator to {text}"
    if cause == "unused_gpus" and len({place for process in found.facts for place in found.of(process)}) == 1:
        pid = f" pid {owners[0].pid} on {owners[0].node}" if owners[0].pid else " it"
        text = IDLE_ADVICE.replace(" it", pid, 1)
    return Change(cause, text, share * hours.held, gain, words)


def _usual(facts: Iterable[Facts], name: str, about: str = "") -> str | None:
    """Return the first label that a series had for most of the time; `about` is the last label, if not any."""
    seen = Counter[str]()
    for each in facts:
        seen.update({key[0]: len(at) for key, at in each.of(name).items() if about in {"", key[-1]}})
    return next((label for label, _ in seen.most_common(1)), None)


def _gain(facts: Sequence[Facts], cause: str) -> Gain | None:
    """Return the gain without a cause: a job is as fast as its slowest process. None if that of one is not known."""
    known: list[list[float]] = []
    for each in facts:
        means = [each.mean(name) for name in names.GAINS]
        if all(cause in mean for mean in means):
            known.append([mean[cause] for mean in means])
        elif cause in each.by(LIMITED_BY):
            return None
    if not known:
        return None
    after = Counter(key[1] for each in facts for key in each.of(names.NEXT) if key[0] == cause)
    expected, lower, upper = map(min, zip(*known, strict=True))
    return Gain(expected, lower, max(upper, expected), after.most_common(1)[0][0] if after else "")


def _settings(facts: Iterable[Facts]) -> dict[str, str]:
    """Return the settings of most processes."""
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in facts:
        own = {key: each.info(PROCESS).get(key, "") for key in ("torch", "cuda", "python", "world_size")}
        for name in names.SETTINGS:
            own |= {("loader " + key if name == names.LOADER else key): value for key, value in each.info(name).items()}
        for key, value in own.items():
            counted[key.replace("_", " ")].update([value] if value else [])
    left_out = {"visible devices", "device nodes", "cuda visible devices", "nvidia visible devices"}
    return {key: values.most_common(1)[0][0] for key, values in counted.items() if values and key not in left_out}
