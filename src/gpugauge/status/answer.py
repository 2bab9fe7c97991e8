"""One line that answers whether the GPUs of a node do useful work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone

from gpugauge.driver.advice import REMEMBERED
from gpugauge.driver.vendors import NO_GPU
from gpugauge.faults.table import FAULTS
from gpugauge.status.details import longest_wait, named_waits, waits_of, waits_words
from gpugauge.status.gpu_problems import programs_words
from gpugauge.status.model import WASTE, GpuStatus, Problem, ProcessStatus, Status
from gpugauge.status.owner import name
from gpugauge.status.problems import gravest
from gpugauge.status.use import gpus_words, in_use, judging, on_gpus, silent, totals, unhooked
from gpugauge.status.words import percent, plural

_MAX_ALSO = 3  # faults besides the gravest
_MAX_NAMED = 2  # programs in the first clause with programs, one in the others
_MAX_NAME_CHARACTERS = 40
_MIN_WAIT = 0.1  # a training on the CPU that waits less is not named
_OF_GPUS = dict.fromkeys(("on_cpu", "waits"), "held by a training on the CPU")  # by kind of the problem
_OF_LINK_AND_CLOCK = frozenset({"gpu_slowed", "narrow_link"})
_FAULTY = _OF_LINK_AND_CLOCK | {"gpu_health", "xid"}
_OF_PROGRAMS = ("wasted", "on_cpu", "slowed", "waits")
_FIXED = {
    "no_gpu": "No GPU: the driver lists none, or the settings exclude all",
    "hook": "gpugauge has trouble with the hook's socket",
}
_WITHOUT_GPU = {"off": "no GPU is watched: driver.mode is off", "starting": "the driver is being opened"}


def answer(facts: Status, problems: Sequence[Problem]) -> str:
    """Return the answer line for a node with these problems, without an end mark."""
    driver, gpus = facts.driver, facts.gpus
    if driver.released_until:
        until = datetime.fromtimestamp(driver.released_until, timezone.utc)
        return f"The driver is released until {until:%Y-%m-%d %H:%M:%S} UTC: the GPUs are not watched"
    clauses = list(_Clauses(problems, gpus).all())
    if not gpus:
        if not any(problem.kind in {"driver", "no_gpu"} for problem in problems):
            words = _WITHOUT_GPU.get(driver.reason, "no GPU" if driver.needed else NO_GPU)
            clauses.append(words if clauses else words[0].upper() + words[1:])
        return "; ".join([*clauses, *_on_cpu(facts.without_gpu, problems)])
    if clauses:
        clauses += _open(gpus)
    return "; ".join(clauses or _well(gpus))


def _open(gpus: Sequence[GpuStatus]) -> Iterator[str]:
    """Yield the clauses about processes with the hook on which there is no verdict."""
    if early := judging(on_gpus(gpus)):
        yield f"{plural(len(early), 'process', 'es')} not judged yet"
    if quiet := silent(on_gpus(gpus)):
        yield f"no report from the hook of {plural(len(quiet), 'process', 'es')}"


def _well(gpus: Sequence[GpuStatus]) -> Iterator[str]:
    """Yield the clauses about GPUs without a problem. A GPU is not called well before it is known to be used well."""
    used = sum(map(in_use, gpus))
    hidden, open_ = unhooked(on_gpus(gpus)), list(_open(gpus))
    if hidden or open_:
        found = "No problem found, but not all is known" if hidden else "No problem found yet"
        yield f"{found}: {used} of {plural(len(gpus), 'GPU')} in use{_mean_load(gpus)}"
        if mig := [device for gpu in gpus for device in gpu.mig if device.state_words]:
            free = sum(device.state_words == "free" for device in mig)
            yield f"{free} of {plural(len(mig), 'MIG device')} free"
        if hidden:
            programs = programs_words(gpus)
            which = f": {programs}" if programs else ""
            yield f"{plural(len(hidden), 'process', 'es')} without the hook, whose work is not known{which}"
        yield from open_
    elif len(gpus) == 1:
        yield f"The GPU is well and {'in use' if used else 'free'}"
    else:
        every = "Both" if len(gpus) == 2 else f"All {len(gpus)}"
        yield f"{every} GPUs are well: {used} in use, {len(gpus) - used} free"


def _mean_load(gpus: Sequence[GpuStatus]) -> str:
    found = totals(gpus)
    if found.load is None:
        return ""
    some = f" (known of {plural(found.load_gpus, 'GPU')})" if found.load_gpus < found.up else ""
    return f", {percent(found.load)} busy on average{some}"


def _on_cpu(processes: Sequence[ProcessStatus], problems: Sequence[Problem]) -> Iterator[str]:
    """Yield a clause about the trainings on the CPU of a machine without a GPU; the one that waits most is named."""
    named = {label for problem in problems for label in problem.processes}
    trainings = [p for p in processes if p.state == "training_on_cpu" and p.process not in named]
    if not trainings:
        return
    open_ = judging(trainings)
    judged = [process for process in trainings if process.process not in open_]
    most = max(judged, key=lambda process: longest_wait(process)[1], default=None)
    more = ""
    if most and longest_wait(most)[1] >= _MIN_WAIT:
        waits = named_waits(waits_of(most))
        more = f": {_short(name(most))} {waits_words(waits)}"
    later = f", {f'{len(open_)} of them ' if judged else ''}not judged yet" if open_ else ""
    yield f"{plural(len(trainings), 'other training' if named else 'training')} on the CPU{later}{more}"


class _Clauses:
    """The parts of the answer, the gravest first. Each GPU counts in one part, that of its gravest problem, and in all
    that are about a fault.
    """

    def __init__(self, problems: Sequence[Problem], gpus: Sequence[GpuStatus]) -> None:
        self._problems, self._gpus, self._total = problems, gpus, len(gpus)
        self._most = _MAX_NAMED
        self._counted: dict[str, set[str]] = {}
        for gpu in gpus:
            first = gravest(gpu, problems)
            for found in problems:
                if found is first or (found.kind not in WASTE and gpu.uuid in found.gpus):
                    self._counted.setdefault(_part(found), set()).add(gpu.uuid)

    def all(self) -> Iterator[str]:
        for part in dict.fromkeys(map(_part, self._problems)):
            found = [problem for problem in self._problems if _part(problem) == part]
            yield from self._clauses(part, found, self._counted.get(part, set()))

    def _clauses(self, part: str, found: Sequence[Problem], uuids: Collection[str]) -> Iterator[str]:
        if part == "driver":
            yield from (f"The driver is {problem.text}" for problem in found)
        elif part == "gpu_down" and uuids:
            remembered = all(gpu.down_reason == REMEMBERED for gpu in self._gpus)
            were = "that was here before is" if len(uuids) == 1 else "that were here before are"
            gone = f"{plural(len(uuids), 'GPU')} {were} not there now (remembered)"
            which = gpus_words([gpu for gpu in self._gpus if gpu.uuid in uuids])
            yield gone if remembered else f"{self._share(uuids)} down, {which}"
        elif part == "gpu_health":
            where = f"{'gravest on ' if len(uuids) > 1 else ''}{found[0].subject}"
            words = [f"{each.subject} {FAULTS[each.runbook].word}" for each in found[1:] if each.runbook]
            text = FAULTS[found[0].runbook or ""].word if found[0].kind in _OF_LINK_AND_CLOCK else found[0].text
            more = f" and {len(words) - _MAX_ALSO} more" if len(words) > _MAX_ALSO else ""
            also = f", also {', '.join(words[:_MAX_ALSO])}{more}" if words else ""
            yield f"{self._share(uuids)} with faults, {where}: {text}{also}"
        elif part == "unjudged" and uuids:
            programs = programs_words([gpu for gpu in self._gpus if gpu.uuid in uuids])
            yield f"{self._share(uuids)} at a low load: {programs}, without the hook"
        elif part == "unused" and uuids:
            yield f"{self._share(uuids)} allocated and not used"
        elif part == "collector":
            yield f"{plural(len(found), 'collector')} of gpugauge failing"
        elif part in _FIXED:
            yield _FIXED[part]
        elif part in _OF_PROGRAMS:
            counted = [problem for problem in found if set(uuids).intersection(problem.gpus)] if uuids else found
            yield (f"{self._share(uuids)} {_OF_GPUS.get(part, part)}: " if uuids else "") + self._named(counted)

    def _named(self, found: Sequence[Problem]) -> str:
        words = [
            f"{_short(problem.subject)} {problem.text}"
            + (f" ({percent(problem.ratio)} lost)" if problem.ratio is not None else "")
            for problem in found[: self._most]
        ]
        more = len(found) - len(words)
        self._most = 1
        return ", ".join(words) + (f" and {more} more" if more else "")

    def _share(self, uuids: Collection[str]) -> str:
        return f"{len(uuids)} of {plural(self._total, 'GPU')}"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARACTERS else name[: _MAX_NAME_CHARACTERS - 1] + "…"


def _part(found: Problem) -> str:
    return "gpu_health" if found.kind in _FAULTY else found.kind
