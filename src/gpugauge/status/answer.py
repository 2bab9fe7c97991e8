"""One line that answers whether the GPUs of a node do useful work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timezone

from gpugauge.driver.advice import REMEMBERED
from gpugauge.driver.vendors import NO_GPU
from gpugauge.status.gpu_problems import programs_words
from gpugauge.status.model import GpuStatus, Problem, ProcessStatus, Status
from gpugauge.status.owner import name
from gpugauge.status.problems import gravest
from gpugauge.status.use import in_use, judging, on_gpus, silent, totals, unhooked
from gpugauge.status.words import percent, plural

_MAX_NAMED = 2  # programs in the first clause with programs, one in the others
_MAX_NAME_CHARACTERS = 40
_MIN_WAIT = 0.1  # a training on the CPU that waits less is not named
_OF_GPUS = dict.fromkeys(("on_cpu", "waits"), "held by a training on the CPU")  # by kind of the problem
_OF_DEVICE = {
    "gpu_slowed": "with lowered clocks",
    "narrow_link": "with a narrow PCIe link",
    "unused": "allocated and not used",
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
    return f", mean load {percent(found.load)}{some}"


def _on_cpu(processes: Sequence[ProcessStatus], problems: Sequence[Problem]) -> Iterator[str]:
    """Yield a clause about the trainings on the CPU of a machine without a GPU; the one that waits most is named."""
    named = {label for problem in problems for label in problem.processes}
    trainings = [p for p in processes if p.state == "training_on_cpu" and p.process not in named]
    if not trainings:
        return
    open_ = judging(trainings)
    judged = [process for process in trainings if process.process not in open_]
    most = max(judged, key=lambda process: process.data_wait_ratio or 0.0, default=None)
    waits = (most.data_wait_ratio if most else None) or 0.0
    more = f": {_short(name(most))} waits for data {percent(waits)} of its time" if most and waits >= _MIN_WAIT else ""
    later = f", {f'{len(open_)} of them ' if judged else ''}not judged yet" if open_ else ""
    yield f"{plural(len(trainings), 'other training' if named else 'training')} on the CPU{later}{more}"


class _Clauses:
    """The parts of the answer, the gravest first. Each GPU counts in one part, that of its gravest problem."""

    def __init__(self, problems: Sequence[Problem], gpus: Sequence[GpuStatus]) -> None:
        self._problems, self._gpus, self._total = problems, gpus, len(gpus)
        self._most = _MAX_NAMED
        self._counted: dict[str, set[str]] = {}
        for gpu in gpus:
            if found := gravest(gpu, problems):
                part = {"gpu_down": "down", "gpu_health": "errors", "xid": "errors"}.get(found.kind, found.kind)
                self._counted.setdefault(part, set()).add(gpu.uuid)

    def all(self) -> Iterator[str]:
        yield from (f"The driver is {problem.text}" for problem in self._of("driver"))
        if self._of("no_gpu"):
            yield "No GPU: the driver lists none, or the settings exclude all"
        if down := self._counted.get("down"):
            remembered = all(gpu.down_reason == REMEMBERED for gpu in self._gpus)
            were = "that was here before is" if len(down) == 1 else "that were here before are"
            gone = f"{plural(len(down), 'GPU')} {were} not there now (remembered)"
            yield gone if remembered else f"{self._share(down)} down"
        ill = self._of("gpu_health", "xid")
        grave = any(problem.grave for problem in ill)
        yield from self._errors(ill if grave else ())
        yield from self._programs("wasted", "on_cpu")
        yield from self._errors(() if grave else ill)
        yield from self._programs("slowed", "waits")
        if uuids := self._counted.get("unjudged"):
            programs = programs_words([gpu for gpu in self._gpus if gpu.uuid in uuids])
            yield f"{self._share(uuids)} at a low load: {programs}, without the hook"
        for kind, words in _OF_DEVICE.items():
            if uuids := self._counted.get(kind):
                yield f"{self._share(uuids)} {words}"
        if failing := self._of("collector"):
            yield f"{plural(len(failing), 'collector')} of gpugauge failing"
        if self._of("hook"):
            yield "gpugauge has trouble with the hook's socket"

    def _errors(self, ill: Sequence[Problem]) -> Iterator[str]:
        uuids = self._counted.get("errors", set())
        counted = [problem for problem in ill if uuids.intersection(problem.gpus)]
        if counted:
            where = f"{'gravest on ' if len(uuids) > 1 else ''}{counted[0].subject}"
            yield f"{self._share(uuids)} with faults, {where}: {counted[0].text}"

    def _programs(self, *kinds: str) -> Iterator[str]:
        for kind in kinds:
            found = self._of(kind)
            if uuids := self._counted.get(kind):
                found = [problem for problem in found if uuids.intersection(problem.gpus)]
                yield f"{self._share(uuids)} {_OF_GPUS.get(kind, kind)}: {self._named(found)}"
            elif found:
                yield self._named(found)

    def _named(self, found: Sequence[Problem]) -> str:
        words = [
            f"{_short(problem.subject)} {problem.text}"
            + (f" ({percent(problem.ratio)} lost)" if problem.ratio is not None else "")
            for problem in found[: self._most]
        ]
        more = len(found) - len(words)
        self._most = 1
        return ", ".join(words) + (f" and {more} more" if more else "")

    def _of(self, *kinds: str) -> list[Problem]:
        return [problem for problem in self._problems if problem.kind in kinds]

    def _share(self, uuids: Collection[str]) -> str:
        return f"{len(uuids)} of {plural(self._total, 'GPU')}"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARACTERS else name[: _MAX_NAME_CHARACTERS - 1] + "…"
