"""The columns about GPUs and processes that `gpugauge status` and `gpugauge top` share; an unknown value is `-`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from gpugauge.base.text import printable
from gpugauge.driver.vendors import product_name
from gpugauge.status.details import details, remark
from gpugauge.status.model import GpuStatus, MigStatus, Problem, ProcessStatus, Status
from gpugauge.status.owner import owner_words
from gpugauge.status.use import gpus_words, mig_name, total
from gpugauge.status.words import duration, numbered, percent, runs
from gpugauge.terminal.columns import Column

_FOLDED = 3  # rows of processes that differ only in pid and figures, from which on they are one


def safe(text: object) -> str:
    """Return text without control characters, "" for None: names come from outside, and must not control the
    terminal.
    """
    return printable(str(text or ""))


def gib(size: float | None) -> str:
    """Return a size of bytes in GiB."""
    return "-" if size is None else f"{size / (1 << 30):.1f}"


def memory_of(device: GpuStatus | MigStatus) -> str:
    """Return the memory of a device in GiB."""
    return _pair(gib(device.memory_used_bytes), gib(device.memory_total_bytes))


def name_of(gpu: GpuStatus) -> str:
    """Return the product of a GPU, its uuid if that is not known."""
    return product_name(safe(gpu.name) or safe(gpu.uuid))


def problem_words(problem: Problem) -> str:
    """Return who has a problem, and what it is."""
    since = f", {problem.since_words}" if problem.since_words else ""
    detail = f"; {problem.detail}" if problem.detail else ""
    return safe(f"{problem.subject}{'' if problem.processes else ':'} {problem.text}{since}{detail}")


def to_do(problem: Problem) -> list[str]:
    """Return what to do about a problem, the steps of a repair, and what that gains."""
    advice = numbered(problem.advice, problem.advice_steps)
    advice = advice if advice[1:] else [f"→ {each}" for each in advice if each]
    steps = [f"{number}. {step}" for number, step in enumerate(problem.steps, 1)]
    gain = [f"Expected: {problem.gain_words}."] if problem.gain_words else []
    return [safe(text) for text in advice + steps + gain]


def _pair(used: str, total: str) -> str:
    return "-" if used == total == "-" else f"{used}/{total}"


def _watts(gpu: GpuStatus) -> str:
    return _pair(*("-" if watts is None else f"{watts:.0f}" for watts in (gpu.power_watts, gpu.power_limit_watts)))


def _load(gpu: GpuStatus, load: float | None) -> str:
    """Return a load of a GPU; one in MIG mode reports none, its MIG devices do."""
    return "MIG" if load is None and gpu.mig else percent(load)


INDEX: Column[GpuStatus] = Column("GPU", lambda gpu, _: "?" if gpu.index is None else str(gpu.index), right=True)
STATE: Column[GpuStatus] = Column("STATE", lambda gpu, _: safe(gpu.state_words))
LOAD: Column[GpuStatus] = Column("BUSY", lambda gpu, _: _load(gpu, gpu.load), right=True)
MEAN_LOAD: Column[GpuStatus] = Column("BUSY 5m", lambda gpu, _: _load(gpu, gpu.load_5m), right=True, rank=4)
MEMORY: Column[GpuStatus] = Column("MEMORY GiB", lambda gpu, _: memory_of(gpu), right=True, rank=2)
POWER: Column[GpuStatus] = Column("POWER W", lambda gpu, _: _watts(gpu), right=True, rank=6)
TEMPERATURE: Column[GpuStatus] = Column(
    "TEMP",
    lambda gpu, _: "-" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} °C",
    right=True,
    rank=1,
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process with its use of all its GPUs: `load` is the mean over them."""

    facts: ProcessStatus
    gpus: Sequence[GpuStatus] = ()
    load: float | None = None
    memory_bytes: float | None = None
    alike: Sequence[ProcessStatus] = ()  # those for which it stands, if these are several

    @property
    def pids(self) -> str:
        """The pids of those for which it stands."""
        return ", ".join(runs(p.pid for p in self.alike or (self.facts,) if p.pid is not None))

    @property
    def where(self) -> str:
        """The indexes of its GPUs, as `0-3`, and its MIG devices."""
        own = self.facts.mig or ()
        devices = [mig_name(device) for gpu in self.gpus for device in gpu.mig if device.uuid in own]
        return " ".join([gpus_words(self.gpus).partition(" ")[2], *map(safe, devices)]) if self.gpus else "-"

    def age(self, now: float) -> str:
        """Return how long it has run until its end or a Unix time, "" if that is not known."""
        start, end = self.facts.started, self.facts.ended or now
        return duration(max(0.0, end - start)) if start else ""

    @property
    def owner(self) -> str:
        """Its pod, job, container or unit, and its user."""
        return owner_words(self.facts.workload)


PID: Column[Process] = Column(
    "PID", lambda process, _: "-" if process.facts.pid is None else str(process.facts.pid), right=True
)
PROCESS_LOAD: Column[Process] = Column("BUSY 5m", lambda process, _: percent(process.load), right=True)
PROCESS_MEMORY: Column[Process] = Column("GiB", lambda process, _: gib(process.memory_bytes), right=True, rank=2)
AGE: Column[Process] = Column("AGE", lambda process, now: process.age(now) or "-", right=True, rank=3)
PROCESS_STATE: Column[Process] = Column("STATE", lambda process, _: safe(process.facts.state_words) or "-")


def processes(status: Status) -> list[Process]:
    """Return each process once: those on GPUs by the index of the first, those without a GPU, those that have ended."""
    found: dict[str, list[tuple[GpuStatus, ProcessStatus]]] = {}
    for gpu in status.gpus:
        for process in gpu.processes:
            found.setdefault(process.process, []).append((gpu, process))
    return [*map(_together, found.values()), *map(Process, (*status.without_gpu, *status.ended))]


def _together(uses: Sequence[tuple[GpuStatus, ProcessStatus]]) -> Process:
    loads = [process.load_5m for _, process in uses if process.load_5m is not None]
    sizes = [process.memory_used_bytes for _, process in uses if process.memory_used_bytes is not None]
    load = sum(loads) / len(loads) if loads else None
    return Process(uses[0][1], [gpu for gpu, _ in uses], load, sum(sizes) if sizes else None)


def folded(found: Sequence[Process], now: float) -> list[Process]:
    """Return the processes; three or more on the same GPUs that differ only in pid and figures are one, with the sums
    of load and memory and the age of the oldest.
    """
    kinds: dict[Hashable, list[Process]] = {}
    for process in found:
        kinds.setdefault(_kind(process, now), []).append(process)
    return [one for alike in kinds.values() for one in ([_sum(alike)] if len(alike) >= _FOLDED else alike)]


def _kind(process: Process, now: float) -> Hashable:
    """Return what equal processes have in common; nothing else has it if there is more to say of a process."""
    facts = process.facts
    plain = facts.state_words == "no hook" and facts.level == "none"
    if not plain or facts.pid is None or details(facts, now) or remark(facts):
        return id(process)
    return facts.command, process.owner, process.where


def _sum(alike: Sequence[Process]) -> Process:
    facts, started = alike[0].facts, min((p.facts.started for p in alike if p.facts.started), default=None)
    facts = replace(facts, started=started, command=f"{facts.command or ''} ×{len(alike)}".strip())
    load, memory = total([p.load for p in alike]), total([p.memory_bytes for p in alike])
    return Process(facts, alike[0].gpus, load, memory, [p.facts for p in alike])
