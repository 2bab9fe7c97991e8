"""One line that answers whether the GPUs of a node do useful work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone

from gpugauge.status.owner import name
from gpugauge.status.problems import in_use, used_well
from gpugauge.status.processes import Facts
from gpugauge.status.words import percent, plural

_MAX_NAMED = 3  # groups in one clause
_MAX_NAME_CHARACTERS = 40
_MIN_WAIT = 0.1  # a training on the CPU that waits less is not named
_WITHOUT_GPU = {"off": "No GPU is watched: driver.mode is off", "starting": "The driver is being opened"}


def answer(facts: Facts, problems: Sequence[Facts]) -> str:
    """Return the answer line for a node with these problems, without an end mark."""
    driver, gpus = facts["driver"], facts["gpus"]
    if driver.get("released_until"):
        until = datetime.fromtimestamp(driver["released_until"], timezone.utc)
        return f"The driver is released until {until:%Y-%m-%d %H:%M:%S} UTC: the GPUs are not watched"
    on_cpu = "" if gpus else _on_cpu(facts["without_gpu"])
    if clauses := list(_Clauses(problems, gpus).all()):
        return "; ".join(clauses) + on_cpu
    if not gpus:
        return _WITHOUT_GPU.get(driver["reason"], "No GPU") + on_cpu
    used = sum(map(in_use, gpus))
    unknown = {p["process"] for g in gpus for p in g["processes"] if p["state_words"] == "no hook"}
    more = f"; {plural(len(unknown), 'process', 'es')} without the hook not judged" if unknown else ""
    if len(gpus) == 1:
        return f"The GPU is well and {'in use' if used else 'free'}{more}"
    every = "Both" if len(gpus) == 2 else f"All {len(gpus)}"
    return f"{every} GPUs are well: {used} in use, {len(gpus) - used} free{more}"


def _on_cpu(processes: Sequence[Facts]) -> str:
    """Return a clause about the trainings on the CPU of a machine without a GPU; the one that waits most is named."""
    trainings = [p for p in processes if p["state"] == "training_on_cpu" and not p["limited_by"]]
    if not trainings:
        return ""
    most = max(trainings, key=lambda process: process["data_wait_ratio"] or 0.0)
    waits = most["data_wait_ratio"] or 0.0
    named = f": {_short(name(most))} waits for data {percent(waits)} of its time" if waits >= _MIN_WAIT else ""
    return f"; {plural(len(trainings), 'training')} on the CPU{named}"


class _Clauses:
    """The parts of the answer, the most important first."""

    def __init__(self, problems: Sequence[Facts], gpus: Sequence[Facts]) -> None:
        self._problems, self._total = problems, len(gpus)
        self._down = {gpu["uuid"] for gpu in gpus if not gpu["up"]}
        working = {gpu["uuid"] for gpu in gpus if used_well(gpu)}
        self._wasted = self._uuids("wasted") - self._down - working

    def all(self) -> Iterator[str]:
        """Yield each clause."""
        yield from (f"The driver is {problem['text']}" for problem in self._of("driver"))
        if self._of("no_gpu"):
            yield "No GPU: the driver lists none, or the settings exclude all"
        if self._down:
            yield f"{self._share(self._down)} down"
        yield from self._trainings()
        yield from self._devices()
        if failing := self._of("collector"):
            yield f"{plural(len(failing), 'collector')} of gpugauge failing"
        if self._of("hook"):
            yield "gpugauge has trouble with the hook's socket"

    def _trainings(self) -> Iterator[str]:
        slowed = self._uuids("slowed") - self._down - self._wasted
        for kind, uuids in (("wasted", self._wasted), ("on_cpu", set[str]()), ("slowed", slowed)):
            found = self._of(kind)
            if uuids:
                here = [problem for problem in found if uuids.intersection(problem["gpus"])]
                yield f"{self._share(uuids)} {kind}: {_named(here)}"
            elif found:
                yield _named(found)

    def _devices(self) -> Iterator[str]:
        ill = self._of("gpu_health", "xid")
        if uuids := self._uuids("gpu_health", "xid") - self._down:
            first = next(problem for problem in ill if uuids.intersection(problem["gpus"]))
            yield f"{self._share(uuids)} with errors: {first['subject']}: {first['text']}"
        if uuids := self._uuids("gpu_slowed") - self._down:
            yield f"{self._share(uuids)} with lowered clocks"
        if uuids := self._uuids("unused"):
            yield f"{self._share(uuids)} allocated and not used"

    def _of(self, *kinds: str) -> list[Facts]:
        return [problem for problem in self._problems if problem["kind"] in kinds]

    def _uuids(self, *kinds: str) -> set[str]:
        return {uuid for problem in self._of(*kinds) for uuid in problem["gpus"]}

    def _share(self, uuids: Iterable[str]) -> str:
        return f"{len(set(uuids))} of {plural(self._total, 'GPU')}"


def _named(found: Sequence[Facts]) -> str:
    """Return the first groups in words."""
    words = [
        f"{_short(problem['subject'])} {problem['text']}"
        + (f" ({percent(problem['ratio'])})" if problem["ratio"] is not None else "")
        for problem in found[:_MAX_NAMED]
    ]
    return ", ".join(words) + (f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else "")


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARACTERS else name[: _MAX_NAME_CHARACTERS - 1] + "…"
