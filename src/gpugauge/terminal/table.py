"""The text of `gpugauge status` for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpugauge.driver.advice import NO_GPU_ADVICE, down_phrase
from gpugauge.status.details import details, last_use, remark
from gpugauge.status.ended import FAILURES
from gpugauge.status.model import WASTE, GpuStatus, MigStatus, Problem, ProcessStatus, Status
from gpugauge.status.owner import holders
from gpugauge.status.use import MIG_LOAD_UNKNOWN, by_place, is_without_gpu, mig_loads_unknown, mig_name
from gpugauge.status.words import HEADS, RUN_ADVICE, SIMULATED, numbered, percent, plural
from gpugauge.terminal import rows
from gpugauge.terminal.columns import Column, Grid, Writer, cells, cut, row_of
from gpugauge.terminal.rows import Process, folded, memory_of, problem_words, safe, to_do
from gpugauge.terminal.screen import chosen, gpu_lines, process_lines
from gpugauge.terminal.style import BOLD, DIM, LEVELS, ORANGE, RED

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
    Column("", lambda device, _: f"busy {percent(device.load)}", right=True),
    Column("", lambda device, _: f"{memory_of(device)} GiB", right=True, rank=1),
    Column("", lambda device, _: safe(holders(device)) or safe(device.state_words), least=12),
    Column("", lambda device, _: safe(device.uuid), rank=2),
)
_PROCESS_INDENT, _NOTE_INDENT = 5, " " * 7
_INDENT = " " * _PROCESS_INDENT
_MAX_ROWS = 64  # of processes, where not all is printed


def table(
    status: Status, colour: bool, now: float, width: int = 80, height: int | None = None, *, verbose: bool = True
) -> str:
    """Return the text of a status; `now` is the Unix time of one without its own, `width` that of the terminal. If it
    is longer than the `height` of the terminal, the answer stands at its end, too. Without `verbose`, each GPU and each
    process has one line, and a problem its advice alone.
    """
    now = status.timestamp or now  # its facts are some seconds old, and the daemon may have another clock
    view = _View(status, now, Writer(width, colour=colour))
    lines = [*view.heading(), *view.problems(verbose), *(view.gpus() if verbose else view.rows()), *view.notes()]
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
        lines = write(SIMULATED, "", ORANGE) if status.simulated else []
        return lines + write(host + safe(status.answer), "", LEVELS.get(status.tone, ""))

    def problems(self, verbose: bool) -> list[str]:
        """Return the problems; without `verbose` those that waste GPU time are short, but for the first."""
        lines: list[str] = []
        kinds = [problem.kind in WASTE for problem in self._status.problems]
        for number, (problem, waste) in enumerate(zip(self._status.problems, kinds, strict=True)):
            if len({*kinds}) > 1 and kinds.index(waste) == number:
                lines += ["", self._writer.paint(HEADS[waste], BOLD)]
            whole = verbose or number == 0 or not waste or problem.steps
            lines += self._problem(problem) if whole else self._in_short(problem)
        return [*([] if lines[:1] == [""] else [""]), *lines] if lines else []

    def _problem(self, problem: Problem) -> list[str]:
        write = self._writer.text
        lines = write(problem_words(problem), "  ", LEVELS[problem.tone], hanging=2)
        for text in to_do(problem):
            lines += write(text, "    ", "" if problem.steps else DIM, hanging=2)
        return lines

    def _in_short(self, problem: Problem) -> list[str]:
        words = problem_words(replace(problem, detail=None, since_words=None))
        if problem.ratio is not None:
            all_lost = percent(problem.ratio if problem.lost_ratio is None else problem.lost_ratio)
            more = f" to this, {all_lost} in all" if all_lost != percent(problem.ratio) else ""
            gain = (problem.gain_words or "").partition(",")[0].removeprefix("steps ").replace("as many", "the")
            lost = f"{percent(problem.ratio)} lost{more}"
            known = [f" ({'; '.join(filter(None, (lost, text)))})" for text in (gain, gain.removeprefix("about "))]
            words += next((text for text in known if cells(words + text) <= self._writer.width - 2), known[-1])
        advice, width = to_do(replace(problem, gain_words=None)), self._writer.width
        if not advice[1:] and cells(words) + cells("".join(advice)) + 3 <= width:
            short = self._writer.paint("".join(advice), DIM)
            return [f"  {self._writer.paint(words, LEVELS[problem.tone])} {short}".rstrip()]
        first = self._writer.text(words, "  ", LEVELS[problem.tone], hanging=2)
        return [*first, *(line for text in advice for line in self._writer.text(text, "    ", DIM))]

    def rows(self) -> list[str]:
        """Return one line for each GPU and for each process, those that lose most first."""
        status, width, lines = self._status, self._writer.width, []
        shown = chosen(status, "lost", False, "")
        parts = [gpu_lines(status, width), process_lines(shown[:_MAX_ROWS], self._now, width)]
        for heading, found in parts:
            if found:
                lines += ["", *self._writer.row(heading, BOLD)]
                lines += [self._writer.paint(text, LEVELS.get(level, "")) for _, text, level in found]
        more = len(shown) - _MAX_ROWS
        lines += self._writer.text(f"and {plural(more, 'more line')} about processes", "", DIM) if more > 0 else []
        return [*lines, "", *self._writer.text("More on each: --verbose", "", DIM)] if lines else []

    def gpus(self) -> list[str]:
        """Return each GPU with its processes below it, and the other processes, with what is known of them."""
        found = [(gpu, row_of(_GPUS, gpu, self._now)) for gpu in self._status.gpus]
        grid = Grid(_GPUS, [row for gpu, row in found if gpu.up], self._writer.width)
        lines = ["", *self._writer.row(grid.heading(), BOLD)] if found else []
        if any(gpu.processes for gpu, _ in found):
            lines += self._writer.row(self._processes.heading(), BOLD)
        for gpu, row in found:
            lines += self._writer.row(grid.line(row)) if gpu.up else self._down(gpu, row)
            lines += self._users(gpu)
        others = {"With torch, on no GPU": self._status.without_gpu, "Ended": self._status.ended}
        for title, processes in others.items():
            if processes:
                lines += ["", *self._writer.text(title, "", BOLD)]
                lines += [*self._writer.row(self._processes.heading(), BOLD), *self._listed(processes)]
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
            return write(f"held by {safe(holders(gpu)) or 'a workload'}, no process", _INDENT, ORANGE)
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
        style = ORANGE if process.end_reason in FAILURES else LEVELS.get(process.tone, "")
        lines = self._writer.row(whole, style)
        listed = process.process in self._in_trouble
        known, facts = safe(remark(process, listed=listed)), map(safe, details(process, self._now))
        cut_off = owner if owner not in whole else ""
        if text := " · ".join(filter(None, (cut_off, known if listed else "", *facts))):
            lines += write(text, _NOTE_INDENT, DIM)
        if known and not listed:
            lines += write(known, _NOTE_INDENT, style)
        if process.advice and not listed and process.advice != RUN_ADVICE:
            steps = numbered(process.advice, process.advice_steps)
            for step in map(safe, steps):
                lines += write(step if steps[1:] else f"→ {step}", _NOTE_INDENT, DIM, hanging=2)
            lines += write(f"Expected: {safe(process.gain_words)}.", _NOTE_INDENT, DIM) if process.gain_words else []
        return lines

    def notes(self) -> list[str]:
        """Return how to learn more of processes that run without the hook, and of a machine without a GPU."""
        status = self._status
        everywhere = (*(p for gpu in status.gpus for p in gpu.processes), *status.without_gpu, *status.ended)
        unhooked = any(process.state_words == "no hook" for process in everywhere)
        advised = any(problem.kind == "unjudged" for problem in status.problems)
        notes = [f"no hook: {RUN_ADVICE}"] if unhooked and not advised else []
        notes += [f"no GPU: {NO_GPU_ADVICE}"] if is_without_gpu(status) else []
        return ["", *(line for note in notes for line in self._writer.text(note, "", DIM))] if notes else []
