"""The text of `gpugauge status` for a terminal of any width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gpugauge.status.details import details, last_use, remark
from gpugauge.status.down import down_phrase
from gpugauge.status.owner import owner
from gpugauge.status.words import RUN_ADVICE, plural
from gpugauge.terminal.columns import Column, Grid, cells, cut, wrap
from gpugauge.terminal.values import age, gib, number, pair, ratio, safe

MIN_WIDTH = 20  # lines are not made narrower
_RESET, _BOLD, _DIM, _RED, _YELLOW, _GREEN = (f"\x1b[{code}m" for code in (0, 1, 2, 31, 33, 32))
_LEVELS = {"bad": _RED, "poor": _YELLOW, "good": _GREEN}
_GPUS = (
    Column("GPU", right=True),
    Column("NAME", least=12),
    Column("LOAD", right=True),
    Column("5 MIN", right=True, rank=2),
    Column("MEMORY GiB", right=True, rank=1),
    Column("POWER W", right=True, rank=4),
    Column("TEMP", right=True, rank=3),
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
_MIG = (Column("", least=12), Column("", right=True), Column("", right=True, rank=1), Column("", least=12))

Facts: TypeAlias = Mapping[str, Any]
_Paint: TypeAlias = Callable[[str, str], str]


def table(facts: Facts, colour: bool, now: float, width: int = 80) -> str:
    """Return the text for the facts of /api/v1/status; `now` is the Unix time of facts without
    their own, `width` that of the terminal.
    """
    now = facts.get("timestamp") or now  # the facts are some seconds old, and the daemon may have another clock
    view = _View(facts, max(MIN_WIDTH, width), now, _paint if colour else _plain)
    return "\n".join([*view.heading(), *view.problems(), *view.gpus(), *view.without_gpu(), *view.notes()]) + "\n"


class _View:
    """One answer of the daemon at a width."""

    def __init__(self, facts: Facts, width: int, now: float, paint: _Paint) -> None:
        self._facts, self._width, self._now, self._paint = facts, width, now, paint
        self._devices: Sequence[Facts] = facts["gpus"]
        alone: Sequence[Facts] = facts.get("without_gpu") or ()
        self._alone = alone
        processes = [*(p for gpu in self._devices for p in gpu["processes"]), *alone]
        self._processes = Grid(_PROCESSES, [self._row(p) for p in processes], width, _PROCESS_INDENT)
        self._unhooked = any(p.get("state_words") == "no hook" for p in processes)

    def heading(self) -> list[str]:
        """Return host and answer."""
        lines = []
        if self._facts.get("simulated"):
            lines += self._wrapped("SIMULATED: these GPUs do not exist.", "", _YELLOW)
        problems = self._facts.get("problems") or []
        style = _RED if any(p["grave"] for p in problems) else _YELLOW if problems else _GREEN
        host = f"{safe(self._facts.get('host'))}: " if self._facts.get("host") else ""
        return lines + self._wrapped(host + safe(self._facts.get("answer")), "", style)

    def problems(self) -> list[str]:
        """Return each problem with what to do."""
        lines = []
        for problem in self._facts.get("problems") or []:
            detail = f" ({safe(problem['detail'])})" if problem.get("detail") else ""
            colon = "" if problem.get("processes") else ":"
            text = f"{safe(problem['subject'])}{colon} {safe(problem['text'])}{detail}"
            lines += self._wrapped(text, "  ", _RED if problem["grave"] else _YELLOW, hanging=2)
            if problem.get("advice"):
                lines += self._wrapped(f"→ {safe(problem['advice'])}", "    ", _DIM, hanging=2)
        return ["", *lines] if lines else []

    def gpus(self) -> list[str]:
        """Return the table of GPUs, each with its processes."""
        if not self._devices:
            return []
        rows = [_gpu_row(gpu) for gpu in self._devices]
        grid = Grid(_GPUS, [row for row, gpu in zip(rows, self._devices, strict=True) if gpu["up"]], self._width)
        lines = ["", *self._fitting(grid.heading(), _BOLD)]
        if any(gpu["processes"] for gpu in self._devices):
            lines += self._fitting(self._processes.heading(), _BOLD)
        for gpu, row in zip(self._devices, rows, strict=True):
            lines += self._fitting(grid.line(row)) if gpu["up"] else self._down(gpu, row)
            lines += self._mig(gpu)
            lines += self._users(gpu)
        return lines

    def _down(self, gpu: Facts, row: Sequence[str]) -> list[str]:
        indent = " " * _PROCESS_INDENT
        named = row[1] if row[1] == gpu["uuid"] else f"{row[1]} {safe(gpu['uuid'])}"
        lines = self._wrapped(f"{row[0]} {named} {down_phrase(gpu.get('down_reason'))}", "  ", _RED, hanging=3)
        used = safe(last_use(gpu))
        return lines + (self._wrapped(used, indent, _DIM, hanging=2) if used else [])

    def _mig(self, gpu: Facts) -> list[str]:
        rows = [_mig_row(device) for device in gpu.get("mig") or ()]
        grid = Grid(_MIG, rows, self._width, _PROCESS_INDENT)
        return [line for row in rows for line in self._fitting(grid.line(row))]

    def _users(self, gpu: Facts) -> list[str]:
        lines = [line for process in gpu["processes"] for line in self._process(process)]
        indent = " " * _PROCESS_INDENT
        if more := gpu["processes_hidden"]:
            lines += self._wrapped(f"and {plural(more, 'more process', 'es')}", indent, _DIM)
        if not lines and gpu["up"]:
            owners = ", ".join(filter(None, (safe(owner(holder)) for holder in gpu["allocated_to"])))
            if gpu["allocated_to"]:
                return self._wrapped(f"held by {owners or 'a workload'}, no process", indent, _YELLOW)
            if gpu["allocation"] == "unallocated":
                return [self._paint(f"{indent}free", _DIM)]
        return lines

    def _row(self, process: Facts) -> list[str]:
        who = " ".join(filter(None, (safe(process.get("command")), safe(owner(process["workload"])))))
        return [
            "-" if process["pid"] is None else str(process["pid"]),
            ratio(process.get("load_5m")),
            gib(process.get("memory_used_bytes")),
            age(process["started"], self._now),
            safe(process.get("state_words")) or "-",
            who or "-",
        ]

    def _process(self, process: Facts) -> list[str]:
        row = self._row(process)
        style = _LEVELS.get(process.get("level") or "", _DIM)
        lines = self._fitting(self._processes.line(row), style)
        if cells(self._processes.line(row)) <= self._width:
            parts = self._processes.parts(row)
            parts[-2] = self._paint(parts[-2], style)  # the last two columns are always shown
            lines = [" " * _PROCESS_INDENT + "  ".join(parts).rstrip()]
        indent = " " * _NOTE_INDENT
        if text := " · ".join(map(safe, details(process, self._now))):
            lines += self._wrapped(text, indent, _DIM)
        if text := safe(remark(process)):
            lines += self._wrapped(text, indent, style)
        return lines

    def without_gpu(self) -> list[str]:
        """Return the processes with torch that use no GPU."""
        if not self._alone:
            return []
        lines = ["", *self._wrapped("With torch, on no GPU", "", _BOLD)]
        lines += self._fitting(self._processes.heading(), _BOLD)
        return lines + [line for process in self._alone for line in self._process(process)]

    def notes(self) -> list[str]:
        """Return how to learn more of processes that run without the hook."""
        return ["", *self._wrapped(f"no hook: {RUN_ADVICE}", "", _DIM)] if self._unhooked else []

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


def _gpu_row(gpu: Facts) -> list[str]:
    degrees = gpu["temperature_celsius"]
    return [
        "?" if gpu["index"] is None else str(gpu["index"]),
        (safe(gpu.get("name")) or safe(gpu["uuid"])).removeprefix("NVIDIA "),
        ratio(gpu["load"]),
        ratio(gpu["load_5m"]),
        pair(gib(gpu["memory_used_bytes"]), gib(gpu["memory_total_bytes"])),
        pair(number(gpu["power_watts"]), number(gpu["power_limit_watts"])),
        "-" if degrees is None else f"{degrees:.0f} °C",
    ]


def _mig_row(device: Facts) -> list[str]:
    used, total = device["memory_used_bytes"], device["memory_total_bytes"]
    holders = ", ".join(filter(None, (safe(owner(holder)) for holder in device.get("allocated_to") or ())))
    return [
        f"MIG {safe(device.get('profile')) or cut(safe(device['uuid']), 20)}",
        f"load {ratio(device['load'])}",
        f"{pair(gib(used), gib(total))} GiB",
        holders or ("free" if device.get("allocation") == "unallocated" else ""),
    ]


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{_RESET}"


def _plain(text: str, _style: str) -> str:
    return text
