"""The lines of `gpugauge top`, without a terminal: problems, GPUs with their history, processes, details."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gpugauge.status.answer import answer
from gpugauge.status.details import is_lossless, last_use, longest_wait, loss
from gpugauge.status.model import GpuStatus, MigStatus, Problem, ProcessStatus, Status
from gpugauge.status.owner import holders, owner_words
from gpugauge.status.problems import level
from gpugauge.status.use import by_place, faulty_first, gpus_words, mig_name, totals
from gpugauge.status.words import clock, percent
from gpugauge.terminal import rows
from gpugauge.terminal.columns import Column, Grid, cells, cut, pad, row_of, wrap
from gpugauge.terminal.rows import Process, folded, memory_of, problem_words, processes, safe, to_do
from gpugauge.verdict.savings import LEAST_SHARE

Line: TypeAlias = "tuple[str, str, str]"  # key, text, level

_HISTORY_SECONDS = 600.0
_BARS = "▁▂▃▄▅▆▇█"
_ILL = {"bad", "poor"}
# Where there is little space, the columns are left out first that say neither what is wrong nor whose it is: who is
# paged has to find the owner. A GPU that is hot keeps its temperature; the details have the rest.
_GPUS: Sequence[Column[GpuStatus]] = (
    rows.INDEX,
    rows.STATE,
    rows.LOAD,
    Column("BUSY 10m", lambda gpu, _: sparkline(gpu.load_10m), rank=3),
    rows.MEAN_LOAD,
    rows.MEMORY,
    rows.POWER,
    rows.TEMPERATURE,
    # The summary of a GPU that is well has its programs, which are in the list below.
    Column("NAME OR PROBLEM", lambda gpu, _: (gpu.level in _ILL and safe(gpu.summary)) or rows.name_of(gpu), least=24),
    Column("OWNER", lambda gpu, _: _owners(gpu, gpu.processes or gpu.last_processes or ()), least=16, rank=2),
)
_PROCESSES: Sequence[Column[Process]] = (
    rows.PID,
    Column("GPU", lambda process, _: process.where, least=4),
    rows.PROCESS_LOAD,
    rows.PROCESS_MEMORY,
    rows.AGE,
    Column("LOST", lambda process, _: _lost_words(process.facts), right=True),
    Column("PROGRAM", lambda process, _: safe(process.facts.command) or "-", least=10),
    Column("STATE OR CAUSE", lambda process, _: _does(process.facts), least=18),
    Column("OWNER", lambda process, _: safe(process.owner) or "-", least=16, rank=1),
)

# By name: the value by which processes are sorted, the largest first; None comes last.
SORTS: Mapping[str, Callable[[Process], float | str | None]] = {
    "lost": lambda p: _lost(p.facts),
    "busy": lambda p: p.load,
    "memory": lambda p: p.memory_bytes,
    "age": lambda p: None if p.facts.started is None else -p.facts.started,
    "gpu": lambda p: -(p.gpus[0].index or 0) if p.gpus else None,
    "pid": lambda p: p.facts.pid,
    "program": lambda p: p.facts.command,
}


def chosen(status: Status, sort: str, reverse: bool, text: str) -> list[Process]:
    """Return the processes whose line, owner or advice contains a text, in an order of SORTS."""
    value, found = SORTS[sort], folded(_with(status, text), status.timestamp)
    order = {"bad": 0, "poor": 1}
    found.sort(key=lambda process: min((order.get(gpu.level, 2) for gpu in process.gpus), default=2))  # of equal ones
    known = [process for process in found if value(process) is not None]
    known.sort(key=lambda process: value(process) or 0, reverse=(sort != "program") != reverse)
    return known + [process for process in found if value(process) is None]


def filtered(status: Status, text: str) -> Status:
    """Return a status with the GPUs that have the text or a process with it, and with the problems of both."""
    found = _with(status, text)
    names = {process.facts.process for process in found} | {gpu.uuid for process in found for gpu in process.gpus}
    gpus = [
        gpu for gpu in status.gpus if gpu.uuid in names or text.casefold() in f"gpu {gpu.index} {gpu.uuid}".casefold()
    ]
    names |= {gpu.uuid for gpu in gpus}
    problems = [each for each in status.problems if each.steps or names & {*each.gpus, *each.processes}]
    return replace(status, gpus=tuple(gpus), problems=tuple(problems))


def of_users(status: Status, users: Collection[str]) -> Status:
    """Return a status with the processes of users and what concerns them."""

    def own(found: Sequence[ProcessStatus] | None) -> tuple[ProcessStatus, ...]:
        return tuple(process for process in found or () if process.workload.get("user") in users)

    gpus = [replace(gpu, processes=own(gpu.processes), last_processes=own(gpu.last_processes)) for gpu in status.gpus]
    gpus = [replace(gpu, processes_hidden=0) for gpu in gpus if gpu.processes or gpu.last_processes]
    alone, ended = own(status.without_gpu), own(status.ended)
    labels = {p.process for p in (*(p for gpu in gpus for p in gpu.processes), *alone)}
    uuids = {gpu.uuid for gpu in gpus}
    found = [
        p  # one of the whole node concerns all
        for p in status.problems
        if (labels & {*p.processes} if p.processes else not p.gpus or uuids & {*p.gpus})
    ]
    left = replace(status, gpus=tuple(gpus), without_gpu=alone, ended=ended, problems=tuple(found), totals=totals(gpus))
    words = answer(left, found) if gpus or alone or found else "no process is on a GPU or has torch"
    return replace(left, answer=f"Of {next(iter(users))}: {words}", level=level(found, left))


def _with(status: Status, text: str) -> list[Process]:
    return [process for process in processes(status) if text.casefold() in _searched(process).casefold()]


def _does(facts: ProcessStatus) -> str:
    """Return what limits a process or how it ended, and its state where that says more."""
    state, why = facts.state_words, loss(facts)[1] or facts.end_words or ""
    hidden = {"training", "ended", state if why.startswith(state) else ""} if why else {""}
    return safe(", ".join(word for word in (state, why) if word not in hidden)) or (
        "-" if facts.ended is None else "ended"
    )


def _owners(device: GpuStatus | MigStatus, users: Sequence[ProcessStatus]) -> str:
    """Return whose programs use a device, or to whom it is allocated; of several owners the first, with the number."""
    found = [*dict.fromkeys(filter(None, map(owner_words, [p.workload for p in users] or device.allocated_to)))]
    return safe(f"{f'{len(found)} owners: ' if found[1:] else ''}{found[0]}") if found else "-"


def _lost(facts: ProcessStatus) -> float | None:
    """Return what a process loses, for the order: all where it does no work for a GPU, its waits on the CPU."""
    lost, _ = loss(facts)
    if lost is None and facts.level in _ILL:
        return 1.0 if facts.level == "bad" else longest_wait(facts)[1]
    return lost


def _lost_words(facts: ProcessStatus) -> str:
    return f"<{percent(LEAST_SHARE)}" if is_lossless(facts) else percent(loss(facts)[0])


def _searched(process: Process) -> str:
    facts = process.facts
    words = (facts.pid, facts.command, facts.state_words, facts.limited_by, loss(facts)[1], facts.process)
    return " ".join([*(str(word or "") for word in words), process.owner, f"gpu {process.where}"])


def clipped(lines: Sequence[tuple[str, str]], height: int, width: int) -> list[tuple[str, str]]:
    """Return the first of some lines; an ellipsis says that there are more."""
    shown = list(lines[:height])
    if len(shown) < len(lines):
        line, level = shown.pop()
        text = cut(line, width - 2)
        shown.append((text if text.endswith("…") else f"{text} …", level))
    return shown


def noted(heading: str, note: str, width: int) -> str:
    """Return a heading with a note at the right end of its last line."""
    if not note:
        return heading
    lines = heading.split("\n")
    space = width - cells(note) - 2
    return "\n".join([*lines[:-1], f"{pad(cut(lines[-1], space), space)}  {note}"])


def problem_lines(problem: Problem, width: int) -> list[tuple[str, str]]:
    """Return a problem as lines with their levels: what is wrong, what to do, what that gains, since when, and who has
    it.
    """
    parts = (
        (problem_words(replace(problem, since_words=None, detail=None)), "", problem.tone),
        *((text, "  ", "") for text in to_do(problem)),
        ("; ".join(filter(None, (problem.since_words, problem.detail))), "  ", "dim"),
    )
    return [(line, level) for text, indent, level in parts for line in wrap(safe(text), width, indent)]


def gpu_lines(status: Status, width: int) -> tuple[str, list[Line]]:
    """Return the heading and a line for each GPU, those with faults first, each followed by its MIG devices: uuid, text
    and level.
    """
    found: list[tuple[str, list[str], str]] = []
    for gpu in faulty_first(status):
        found.append((gpu.uuid, row_of(_GPUS, gpu, status.timestamp), gpu.tone))
        found += [(d.uuid, _mig_row(d, found_on), "none") for d, found_on in by_place(gpu, gpu.processes) if d]
    grid = Grid(_GPUS, [row for _, row, _ in found], width)
    return grid.heading(), [(uuid, grid.line(row), level) for uuid, row, level in found]


def states(status: Status, width: int) -> str:
    """Return the states of all GPUs in one line, those with faults first."""
    found: dict[str, list[GpuStatus]] = {}
    for gpu in faulty_first(status):
        found.setdefault(safe(gpu.state_words), []).append(gpu)
    return cut("; ".join(f"{gpus_words(alike)} {words}" for words, alike in found.items()), width)


def process_lines(shown: Sequence[Process], now: float, width: int) -> tuple[str, list[Line]]:
    """Return the heading and a line for each process: its label, text and level."""
    found = [row_of(_PROCESSES, process, now) for process in shown]
    grid = Grid(_PROCESSES, found, width)
    keyed = zip(shown, found, strict=True)
    return grid.heading(), [(p.facts.process, grid.line(row), p.facts.tone) for p, row in keyed]


def _mig_row(device: MigStatus, users: Sequence[ProcessStatus]) -> list[str]:
    state, load, name = f"MIG {device.state_words}".strip(), percent(device.load), f"MIG {safe(mig_name(device))}"
    return ["", state, load, "", "", memory_of(device), "", "", name, _owners(device, users)]


def sparkline(points: Sequence[tuple[float, float | None]], width: int = 12) -> str:
    """Return the loads of the last ten minutes, each with its age in seconds, as bars, the newest at the right; a blank
    where it is unknown.
    """
    bars = []
    for age in range(width - 1, -1, -1):
        known = [share for ago, share in points if share is not None and int(ago * width / _HISTORY_SECONDS) == age]
        mean = sum(known) / len(known) if known else None
        bars.append(" " if mean is None else _BARS[int(max(0.0, min(mean, 0.99)) * len(_BARS))])
    return "".join(bars)


def gpu_of(status: Status, uuid: str | None) -> GpuStatus | None:
    """Return the GPU with a uuid, or with a MIG device of that uuid."""
    return next((gpu for gpu in status.gpus if uuid in {gpu.uuid, *(device.uuid for device in gpu.mig)}), None)


def gpu_details(gpu: GpuStatus) -> list[str]:
    """Return what is known of a GPU, one fact a line, the trouble first."""
    lines = [
        f"{gpus_words([gpu])}: {gpu.summary or gpu.state_words}",
        f"→ {gpu.advice}" if gpu.advice else "",
        last_use(gpu),
        *(" → ".join(filter(None, (f.text, f.advice))) for f in gpu.health if f.text != gpu.summary),
        *(f"{xid.text}, {clock(xid.last)}" for xid in reversed(gpu.xids)),
        f"clocks lowered: {', '.join(gpu.slowed_by)}" if gpu.slowed_by else "",
        *(f"MIG {mig_name(d)}: busy {percent(d.load)}, {memory_of(d)} GiB" for d in gpu.mig),
        f"allocated to {holders(gpu)}" if holders(gpu) else "",
        f"{gpu.uuid}, PCI {gpu.pci_bus_id or 'unknown'}",
    ]
    return [safe(line) for line in lines if line]
