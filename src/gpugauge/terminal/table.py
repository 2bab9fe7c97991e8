"""The text of `gpugauge status` for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpugauge.driver.advice import NO_GPU_ADVICE, down_phrase
from gpugauge.status.details import details, last_use, remark
from gpugauge.status.ended import FAILURES
from gpugauge.status.model import GpuStatus, MigStatus, ProcessStatus, Status
from gpugauge.status.owner import holders
from gpugauge.status.use import MIG_LOAD_UNKNOWN, by_place, is_without_gpu, mig_loads_unknown, mig_name
from gpugauge.status.words import RUN_ADVICE, SIMULATED, percent, plural
from gpugauge.terminal import rows
from gpugauge.terminal.columns import Column, Grid, Writer, cells, cut, row_of
from gpugauge.terminal.rows import Process, folded, memory_of, problem_words, safe, to_do
from gpugauge.terminal.style import BOLD, DIM, LEVELS, RED, YELLOW

_GPUS: Sequence[Column[GpuStatus]] = (
    rows.INDEX,
    Column("NAME", lambda gpu, _: rows.name_of(gpu), least=12),
    rows.LOAD,
    rows.MEAN_LOAD,
    rows.MEMORY,
    rows.POWER,
    replace(rows.TEMPERATURE, rank=5),
    replace(rows.STATE, rank=1),
)
_PROCESSES: Sequence[Column[Process]] = (
    rows.PID,
    rows.PROCESS_LOAD,
    rows.PROCESS_MEMORY,
    rows.AGE,
    rows.PROCESS_STATE,
    Column(
        "PROGRAM",
        lambda process, _: " ".join(filter(None, map(safe, (process.facts.command, process.owner)))) or "-",
        least=12,
    ),
)
_MIG: Sequence[Column[MigStatus]] = (
    Column("", lambda device, _: f"MIG {cut(safe(mig_name(device)), 24)}", least=12),
    Column("", lambda device, _: f"load {percent(device.load)}", right=True),
    Column("", lambda device, _: f"{memory_of(device)} GiB", right=True, rank=1),
    Column("", lambda device, _: safe(holders(device)) or safe(device.state_words), least=12),
    Column("", lambda device, _: safe(device.uuid), rank=2),
)
_PROCESS_INDENT, _NOTE_INDENT = 5, " " * 7
_INDENT = " " * _PROCESS_INDENT


def table(status: Status, colour: bool, now: float, width: int = 80, height: int | None = None) -> str:
    """Return the text of a status; `now` is the Unix time of one without its own, `width` that of the terminal. If it
    is longer than the `height` of the terminal, the answer stands at its end, too.
    """
    now = status.timestamp or now  # its facts are some seconds old, and the daemon may have another clock
    view = _View(status, now, Writer(width, colour=colour))
    lines = [*view.heading(), *view.problems(), *view.gpus()]
    lines += [*view.others("With torch, on no GPU", status.without_gpu), *view.others("Ended", status.ended)]
    lines += view.notes()
    if height is not None and len(lines) >= height:
        lines += ["", *view.heading()]
    return "\n".join(lines) + "\n"


class _View:
    def __init__(self, status: Status, now: float, writer: Writer) -> None:
        self._status, self._now, self._writer = status, now, writer
        self._in_trouble = {label for problem in status.problems for label in problem.processes}
        places = [found for gpu in status.gpus for _, found in by_place(gpu, gpu.processes)]
        shown = [row for found in (*places, status.without_gpu, status.ended) for row, _ in self._rows(found)]
        self._processes = Grid(_PROCESSES, shown, writer.width, _PROCESS_INDENT)

    def heading(self) -> list[str]:
        write, status = self._writer.text, self._status
        host = f"{safe(status.host)}: " if status.host else ""
        lines = write(SIMULATED, "", YELLOW) if status.simulated else []
        return lines + write(host + safe(status.answer), "", LEVELS.get(status.level, ""))

    def problems(self) -> list[str]:
        lines, write = [], self._writer.text
        for problem in self._status.problems:
            lines += write(problem_words(problem), "  ", RED if problem.grave else YELLOW, hanging=2)
            for text in to_do(problem):
                lines += write(text, "    ", "" if problem.steps else DIM, hanging=2)
        return ["", *lines] if lines else []

    def gpus(self) -> list[str]:
        found = [(gpu, row_of(_GPUS, gpu, self._now)) for gpu in self._status.gpus]
        if not found:
            return []
        grid = Grid(_GPUS, [row for gpu, row in found if gpu.up], self._writer.width)
        lines = ["", *self._writer.row(grid.heading(), BOLD)]
        if any(gpu.processes for gpu, _ in found):
            lines += self._writer.row(self._processes.heading(), BOLD)
        for gpu, row in found:
            lines += self._writer.row(grid.line(row)) if gpu.up else self._down(gpu, row)
            lines += self._users(gpu)
        return lines

    def _down(self, gpu: GpuStatus, row: Sequence[str]) -> list[str]:
        named = row[1] if row[1] == gpu.uuid else f"{row[1]} {safe(gpu.uuid)}"
        lines = self._writer.text(f"{row[0]} {named} {down_phrase(gpu.down_reason)}", "  ", RED, hanging=3)
        used = safe(last_use(gpu))
        return lines + (self._writer.text(used, _INDENT, DIM, hanging=2) if used else [])

    def _users(self, gpu: GpuStatus) -> list[str]:
        """Return the processes of a GPU, those on a MIG device below it."""
        write = self._writer.text
        devices = {device.uuid: row_of(_MIG, device, self._now) for device in gpu.mig}
        grid = Grid(_MIG, list(devices.values()), self._writer.width, _PROCESS_INDENT)
        lines = write(MIG_LOAD_UNKNOWN, _INDENT, DIM, hanging=2) if mig_loads_unknown(gpu) else []
        for device, found in by_place(gpu, gpu.processes):
            lines += self._writer.row(grid.line(devices[device.uuid]), BOLD) if device else []
            lines += self._listed(found)
        if more := gpu.processes_hidden:
            lines += write(f"and {plural(more, 'more process', 'es')}", _INDENT, DIM)
        if not lines and gpu.up and gpu.allocated_to:
            return write(f"held by {safe(holders(gpu)) or 'a workload'}, no process", _INDENT, YELLOW)
        if not lines and gpu.up and gpu.allocation == "unallocated":
            return [self._writer.paint(f"{_INDENT}free", DIM)]
        return lines

    def _rows(self, found: Sequence[ProcessStatus]) -> Iterator[tuple[list[str], Process]]:
        for one in folded([Process(p, (), p.load_5m, p.memory_used_bytes) for p in found], self._now):
            yield row_of(_PROCESSES, one, self._now), one

    def _listed(self, found: Sequence[ProcessStatus]) -> list[str]:
        lines = []
        for row, one in self._rows(found):
            lines += self._process(row, one.facts, safe(one.owner))
            if one.alike:
                lines += self._writer.text(f"sums of pids {one.pids}", _NOTE_INDENT, DIM)
        return lines

    def _process(self, row: list[str], process: ProcessStatus, owner: str) -> list[str]:
        write, whole = self._writer.text, self._processes.line(row)
        style = YELLOW if process.end_reason in FAILURES else LEVELS.get(process.level, DIM)
        lines = self._writer.row(whole, style)
        if cells(whole) <= self._writer.width:
            parts = self._processes.parts(row)
            parts[-2] = self._writer.paint(parts[-2], style)  # the last two columns are always shown
            lines = [_INDENT + "  ".join(parts).rstrip()]
        listed = process.process in self._in_trouble
        known, facts = safe(remark(process, listed=listed)), map(safe, details(process, self._now))
        cut_off = owner if owner not in whole else ""
        if text := " · ".join(filter(None, (cut_off, known if listed else "", *facts))):
            lines += write(text, _NOTE_INDENT, DIM)
        if known and not listed:
            lines += write(known, _NOTE_INDENT, style)
        if process.advice and not listed and process.advice != RUN_ADVICE:
            lines += write(f"→ {safe(process.advice)}", _NOTE_INDENT, DIM, hanging=2)
            lines += write(f"Expected: {safe(process.gain_words)}.", _NOTE_INDENT, DIM) if process.gain_words else []
        return lines

    def others(self, title: str, found: Sequence[ProcessStatus]) -> list[str]:
        if not found:
            return []
        lines = ["", *self._writer.text(title, "", BOLD), *self._writer.row(self._processes.heading(), BOLD)]
        return lines + self._listed(found)

    def notes(self) -> list[str]:
        """Return how to learn more of processes that run without the hook, and of a machine without a GPU."""
        status = self._status
        everywhere = (*(p for gpu in status.gpus for p in gpu.processes), *status.without_gpu, *status.ended)
        unhooked = any(process.state_words == "no hook" for process in everywhere)
        advised = any(problem.kind == "unjudged" for problem in status.problems)
        notes = [f"no hook: {RUN_ADVICE}"] if unhooked and not advised else []
        notes += [f"no GPU: {NO_GPU_ADVICE}"] if is_without_gpu(status) else []
        return ["", *(line for note in notes for line in self._writer.text(note, "", DIM))] if notes else []
