"""The text of `gpugauge status` for a terminal of any width."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gpugauge.driver.advice import NO_GPU_ADVICE, down_phrase, is_without_gpu
from gpugauge.status.details import details, last_use, remark
from gpugauge.status.ended import FAILURES
from gpugauge.status.owner import owner
from gpugauge.status.use import MIG_LOAD_UNKNOWN, by_place, mig_loads_unknown, mig_name
from gpugauge.status.words import RUN_ADVICE, plural, runs
from gpugauge.terminal.columns import Column, Grid, cells, cut, wrap
from gpugauge.terminal.style import BOLD, DIM, LEVELS, RED, YELLOW, Paint, painter
from gpugauge.terminal.values import age, gib, load_of, number, pair, ratio, safe

MIN_WIDTH = 20  # lines are not made narrower
_GPUS = (
    Column("GPU", right=True),
    Column("NAME", least=12),
    Column("LOAD", right=True),
    Column("5 MIN", right=True, rank=3),
    Column("MEMORY GiB", right=True, rank=2),
    Column("POWER W", right=True, rank=5),
    Column("TEMP", right=True, rank=4),
    Column("STATE", rank=1),
)
_PROCESS_INDENT, _NOTE_INDENT = 5, 7
_PROCESSES = (
    Column("PID", right=True),
    Column("LOAD", right=True),
    Column("GiB", right=True, rank=1),
    Column("AGE", right=True, rank=2),
    Column("STATE"),
    Column("PROGRAM", least=12),
)
_FOLDED = 3  # rows of processes that differ only in pid and figures, from which on they are one
_MIG = (
    Column("", least=12),
    Column("", right=True),
    Column("", right=True, rank=1),
    Column("", least=12),
    Column("", rank=2),  # the uuid
)

Status: TypeAlias = Mapping[str, Any]


def table(facts: Status, colour: bool, now: float, width: int = 80, height: int | None = None) -> str:
    """Return the text for the facts of /api/v1/status; `now` is the Unix time of facts without their own, `width` that
    of the terminal. If it is longer than the `height` of the terminal, the answer stands at its end, too.
    """
    now = facts.get("timestamp") or now  # the facts are some seconds old, and the daemon may have another clock
    view = _View(facts, max(MIN_WIDTH, width), now, painter(colour))
    lines = [*view.heading(), *view.problems(), *view.gpus(), *view.without_gpu(), *view.ended(), *view.notes()]
    if height is not None and len(lines) >= height:
        lines += ["", *view.heading()]
    return "\n".join(lines) + "\n"


class _View:
    """One answer of the daemon at a width."""

    def __init__(self, facts: Status, width: int, now: float, paint: Paint) -> None:
        self._facts, self._width, self._now, self._paint = facts, width, now, paint
        self._devices: Sequence[Status] = facts["gpus"]
        alone: Sequence[Status] = facts.get("without_gpu") or ()
        self._alone = alone
        self._ended: Sequence[Status] = facts.get("ended") or ()
        processes = [*(p for gpu in self._devices for p in gpu["processes"]), *alone, *self._ended]
        places = [found for gpu in self._devices for _, found in by_place(gpu, gpu["processes"])]
        rows = [row for found in (*places, alone, self._ended) for row, _ in self._rows(found)]
        self._processes = Grid(_PROCESSES, rows, width, _PROCESS_INDENT)
        unhooked = any(p.get("state_words") == "no hook" for p in processes)
        advised = any(problem["kind"] == "unjudged" for problem in facts.get("problems") or ())
        self._unhooked = unhooked and not advised

    def heading(self) -> list[str]:
        """Return host and answer."""
        lines = []
        if self._facts.get("simulated"):
            lines += self._wrapped("SIMULATED: these GPUs do not exist.", "", YELLOW)
        style = LEVELS.get(self._facts.get("level") or "", "")
        host = f"{safe(self._facts.get('host'))}: " if self._facts.get("host") else ""
        return lines + self._wrapped(host + safe(self._facts.get("answer")), "", style)

    def problems(self) -> list[str]:
        """Return each problem with what to do."""
        lines = []
        for problem in self._facts.get("problems") or []:
            detail = f" ({safe(problem['detail'])})" if problem.get("detail") else ""
            colon = "" if problem.get("processes") else ":"
            text = f"{safe(problem['subject'])}{colon} {safe(problem['text'])}{detail}"
            lines += self._wrapped(text, "  ", RED if problem["grave"] else YELLOW, hanging=2)
            if problem.get("advice"):
                lines += self._wrapped(f"→ {safe(problem['advice'])}", "    ", DIM, hanging=2)
            if problem.get("gain_words"):
                lines += self._wrapped(f"Expected: {safe(problem['gain_words'])}.", "      ", DIM)
        return ["", *lines] if lines else []

    def gpus(self) -> list[str]:
        """Return the table of GPUs, each with its processes."""
        if not self._devices:
            return []
        rows = [_gpu_row(gpu) for gpu in self._devices]
        grid = Grid(_GPUS, [row for row, gpu in zip(rows, self._devices, strict=True) if gpu["up"]], self._width)
        lines = ["", *self._fitting(grid.heading(), BOLD)]
        if any(gpu["processes"] for gpu in self._devices):
            lines += self._fitting(self._processes.heading(), BOLD)
        for gpu, row in zip(self._devices, rows, strict=True):
            lines += self._fitting(grid.line(row)) if gpu["up"] else self._down(gpu, row)
            lines += self._users(gpu)
        return lines

    def _down(self, gpu: Status, row: Sequence[str]) -> list[str]:
        indent = " " * _PROCESS_INDENT
        named = row[1] if row[1] == gpu["uuid"] else f"{row[1]} {safe(gpu['uuid'])}"
        lines = self._wrapped(f"{row[0]} {named} {down_phrase(gpu.get('down_reason'))}", "  ", RED, hanging=3)
        used = safe(last_use(gpu))
        return lines + (self._wrapped(used, indent, DIM, hanging=2) if used else [])

    def _users(self, gpu: Status) -> list[str]:
        """Return the processes of a GPU, those on a MIG device below it."""
        grid = Grid(_MIG, [_mig_row(device) for device in gpu.get("mig") or ()], self._width, _PROCESS_INDENT)
        note = MIG_LOAD_UNKNOWN if mig_loads_unknown(gpu) else ""
        lines = self._wrapped(note, " " * _PROCESS_INDENT, DIM, hanging=2) if note else []
        for device, processes in by_place(gpu, gpu["processes"]):
            lines += self._fitting(grid.line(_mig_row(device)), BOLD) if device else []
            lines += self._listed(processes)
        indent = " " * _PROCESS_INDENT
        if more := gpu["processes_hidden"]:
            lines += self._wrapped(f"and {plural(more, 'more process', 'es')}", indent, DIM)
        if not lines and gpu["up"]:
            owners = ", ".join(filter(None, (safe(owner(holder)) for holder in gpu["allocated_to"])))
            if gpu["allocated_to"]:
                return self._wrapped(f"held by {owners or 'a workload'}, no process", indent, YELLOW)
            if gpu["allocation"] == "unallocated":
                return [self._paint(f"{indent}free", DIM)]
        return lines

    def _rows(self, processes: Sequence[Status]) -> Iterator[tuple[list[str], list[Status]]]:
        """Yield the rows of processes, each with those that it stands for: equal ones without the hook have one row."""
        kinds: dict[Hashable, list[Status]] = {}
        for process in processes:
            kinds.setdefault(self._kind(process), []).append(process)
        for alike in kinds.values():
            if len(alike) >= _FOLDED:
                yield self._row_of(alike), alike
            else:
                yield from ((self._row(process), [process]) for process in alike)

    def _kind(self, process: Status) -> Hashable:
        """Return what equal processes have in common; nothing else has it if there is more to say of a process."""
        plain = process.get("state_words") == "no hook" and process.get("level") in {None, "none"}
        if not plain or process["pid"] is None or details(process, self._now) or remark(process):
            return id(process)
        return process.get("command"), owner(process["workload"])

    def _row_of(self, alike: Sequence[Status]) -> list[str]:
        """Return the row of several processes: the sums of load and memory, the age of the oldest."""
        one = dict(alike[0])
        for key in ("load_5m", "memory_used_bytes"):
            one[key] = None if any(process.get(key) is None for process in alike) else sum(p[key] for p in alike)
        one["started"] = min((process["started"] for process in alike if process["started"]), default=None)
        one["command"] = f"{one.get('command') or ''} ×{len(alike)}".strip()
        return self._row(one)

    def _listed(self, processes: Sequence[Status]) -> list[str]:
        """Return the lines of processes."""
        lines = []
        for row, found in self._rows(processes):
            lines += self._process(row, found[0])
            if len(found) > 1:
                pids = ", ".join(runs(process["pid"] for process in found))
                lines += self._wrapped(f"sums of pids {pids}", " " * _NOTE_INDENT, DIM)
        return lines

    def _row(self, process: Status) -> list[str]:
        who = " ".join(filter(None, (safe(process.get("command")), safe(owner(process["workload"])))))
        return [
            "-" if process["pid"] is None else str(process["pid"]),
            ratio(process.get("load_5m")),
            gib(process.get("memory_used_bytes")),
            age(process["started"], process.get("ended") or self._now),
            safe(process.get("state_words")) or "-",
            who or "-",
        ]

    def _process(self, row: list[str], process: Status) -> list[str]:
        style = YELLOW if process.get("end_reason") in FAILURES else LEVELS.get(process.get("level") or "", DIM)
        lines = self._fitting(self._processes.line(row), style)
        if cells(self._processes.line(row)) <= self._width:
            parts = self._processes.parts(row)
            parts[-2] = self._paint(parts[-2], style)  # the last two columns are always shown
            lines = [" " * _PROCESS_INDENT + "  ".join(parts).rstrip()]
        indent = " " * _NOTE_INDENT
        if text := " · ".join(map(safe, details(process, self._now))):
            lines += self._wrapped(text, indent, DIM)
        if text := safe(remark(process)):
            lines += self._wrapped(text, indent, style)
        if process.get("ended") is not None and process.get("advice"):
            lines += self._wrapped(f"→ {safe(process['advice'])}", indent, DIM, hanging=2)
        return lines

    def ended(self) -> list[str]:
        """Return the trainings that have ended."""
        if not self._ended:
            return []
        lines = ["", *self._wrapped("Ended", "", BOLD)]
        lines += self._fitting(self._processes.heading(), BOLD)
        return lines + self._listed(self._ended)

    def without_gpu(self) -> list[str]:
        """Return the processes with torch that use no GPU."""
        if not self._alone:
            return []
        lines = ["", *self._wrapped("With torch, on no GPU", "", BOLD)]
        lines += self._fitting(self._processes.heading(), BOLD)
        return lines + self._listed(self._alone)

    def notes(self) -> list[str]:
        """Return how to learn more of processes that run without the hook, and of a machine without a GPU."""
        notes = [f"no hook: {RUN_ADVICE}"] if self._unhooked else []
        notes += [f"no GPU: {NO_GPU_ADVICE}"] if is_without_gpu(self._facts) else []
        return ["", *(line for note in notes for line in self._wrapped(note, "", DIM))] if notes else []

    def _fitting(self, row: str, style: str = "") -> list[str]:
        """Return a row of a table; several lines where the terminal is narrower than its narrowest form."""
        if cells(row) <= self._width:
            lines = [row]
        else:
            indent = " " * (len(row) - len(row.lstrip()))
            lines = wrap(row, self._width, indent, indent + "  ")
        return [self._paint(line, style) if style else line for line in lines]

    def _wrapped(self, text: str, indent: str, style: str, hanging: int = 0) -> list[str]:
        return [self._paint(line, style) for line in wrap(text, self._width, indent, indent + " " * hanging)]


def _gpu_row(gpu: Status) -> list[str]:
    degrees = gpu["temperature_celsius"]
    return [
        "?" if gpu["index"] is None else str(gpu["index"]),
        (safe(gpu.get("name")) or safe(gpu["uuid"])).removeprefix("NVIDIA "),
        load_of(gpu, "load"),
        load_of(gpu, "load_5m"),
        pair(gib(gpu["memory_used_bytes"]), gib(gpu["memory_total_bytes"])),
        pair(number(gpu["power_watts"]), number(gpu["power_limit_watts"])),
        "-" if degrees is None else f"{degrees:.0f} °C",
        safe(gpu.get("state_words")),
    ]


def _mig_row(device: Status) -> list[str]:
    used, total = device["memory_used_bytes"], device["memory_total_bytes"]
    holders = ", ".join(filter(None, (safe(owner(holder)) for holder in device.get("allocated_to") or ())))
    return [
        f"MIG {cut(safe(mig_name(device)), 24)}",
        f"load {ratio(device['load'])}",
        f"{pair(gib(used), gib(total))} GiB",
        holders or safe(device.get("state_words")),
        safe(device["uuid"]),
    ]
