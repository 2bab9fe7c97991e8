"""The text of `gpugauge status` for a terminal of any width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gpugauge.cli.columns import Column, Grid, cut, wrap
from gpugauge.status.details import details, last_use, remark
from gpugauge.status.down import down_phrase
from gpugauge.status.owner import owner
from gpugauge.status.words import RUN_ADVICE, percent
from gpugauge.text import printable

MIN_WIDTH = 60  # lines are not made narrower
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
            lines.append(self._paint("SIMULATED: these GPUs do not exist.", _YELLOW))
        problems = self._facts.get("problems") or []
        style = _RED if any(p["grave"] for p in problems) else _YELLOW if problems else _GREEN
        host = f"{_safe(self._facts.get('host'))}: " if self._facts.get("host") else ""
        return lines + self._wrapped(host + _safe(self._facts.get("answer")), "", style)

    def problems(self) -> list[str]:
        """Return each problem with what to do."""
        lines = []
        for problem in self._facts.get("problems") or []:
            detail = f" ({_safe(problem['detail'])})" if problem.get("detail") else ""
            colon = "" if problem.get("processes") else ":"
            text = f"{_safe(problem['subject'])}{colon} {_safe(problem['text'])}{detail}"
            lines += self._wrapped(text, "  ", _RED if problem["grave"] else _YELLOW, hanging=2)
            if problem.get("advice"):
                lines += self._wrapped(f"→ {_safe(problem['advice'])}", "    ", _DIM, hanging=2)
        return ["", *lines] if lines else []

    def gpus(self) -> list[str]:
        """Return the table of GPUs, each with its processes."""
        if not self._devices:
            return []
        rows = [_gpu_row(gpu) for gpu in self._devices]
        grid = Grid(_GPUS, [row for row, gpu in zip(rows, self._devices, strict=True) if gpu["up"]], self._width)
        lines = ["", self._paint(grid.heading(), _BOLD)]
        if any(gpu["processes"] for gpu in self._devices):
            lines.append(self._paint(self._processes.heading(), _BOLD))
        for gpu, row in zip(self._devices, rows, strict=True):
            lines += [grid.line(row)] if gpu["up"] else self._down(gpu, row)
            lines += self._mig(gpu)
            lines += self._users(gpu)
        return lines

    def _down(self, gpu: Facts, row: Sequence[str]) -> list[str]:
        indent = " " * _PROCESS_INDENT
        named = row[1] if row[1] == gpu["uuid"] else f"{row[1]} {_safe(gpu['uuid'])}"
        lines = self._wrapped(f"{row[0]} {named} {down_phrase(gpu.get('down_reason'))}", "  ", _RED, hanging=3)
        used = _safe(last_use(gpu))
        return lines + (self._wrapped(used, indent, _DIM, hanging=2) if used else [])

    def _mig(self, gpu: Facts) -> list[str]:
        rows = [_mig_row(device) for device in gpu.get("mig") or ()]
        grid = Grid(_MIG, rows, self._width, _PROCESS_INDENT)
        return [grid.line(row) for row in rows]

    def _users(self, gpu: Facts) -> list[str]:
        lines = [line for process in gpu["processes"] for line in self._process(process)]
        indent = " " * _PROCESS_INDENT
        if more := gpu["processes_hidden"]:
            lines.append(self._paint(f"{indent}and {more} more process{'es' if more > 1 else ''}", _DIM))
        if not lines and gpu["up"]:
            owners = ", ".join(filter(None, (_safe(owner(holder)) for holder in gpu["allocated_to"])))
            if gpu["allocated_to"]:
                return self._wrapped(f"held by {owners or 'a workload'}, no process", indent, _YELLOW)
            if gpu["allocation"] == "unallocated":
                return [self._paint(f"{indent}free", _DIM)]
        return lines

    def _row(self, process: Facts) -> list[str]:
        who = " ".join(filter(None, (_safe(process.get("command")), _safe(owner(process["workload"])))))
        return [
            "-" if process["pid"] is None else str(process["pid"]),
            _ratio(process.get("load_5m")),
            _gib(process.get("memory_used_bytes")),
            _age(process["started"], self._now),
            _safe(process.get("state_words")) or "-",
            who or "-",
        ]

    def _process(self, process: Facts) -> list[str]:
        row = self._row(process)
        parts = self._processes.parts(row)
        place = len(parts) - 2  # the last two columns are always shown
        parts[place] = self._paint(parts[place], _LEVELS.get(process.get("level") or "", _DIM))
        lines = [" " * _PROCESS_INDENT + "  ".join(parts).rstrip()]
        indent = " " * _NOTE_INDENT
        if text := " · ".join(map(_safe, details(process, self._now))):
            lines += self._wrapped(text, indent, _DIM)
        if text := _safe(remark(process)):
            lines += self._wrapped(text, indent, _LEVELS.get(process.get("level") or "", _DIM))
        return lines

    def without_gpu(self) -> list[str]:
        """Return the processes with torch that use no GPU."""
        if not self._alone:
            return []
        lines = ["", self._paint("With torch, on no GPU", _BOLD), self._paint(self._processes.heading(), _BOLD)]
        return lines + [line for process in self._alone for line in self._process(process)]

    def notes(self) -> list[str]:
        """Return how to learn more of processes that run without the hook."""
        return ["", *self._wrapped(f"no hook: {RUN_ADVICE}", "", _DIM)] if self._unhooked else []

    def _wrapped(self, text: str, indent: str, style: str, hanging: int = 0) -> list[str]:
        return [self._paint(line, style) for line in wrap(text, self._width, indent, indent + " " * hanging)]


def _gpu_row(gpu: Facts) -> list[str]:
    degrees = gpu["temperature_celsius"]
    return [
        "?" if gpu["index"] is None else str(gpu["index"]),
        (_safe(gpu.get("name")) or _safe(gpu["uuid"])).removeprefix("NVIDIA "),
        _ratio(gpu["load"]),
        _ratio(gpu["load_5m"]),
        _pair(_gib(gpu["memory_used_bytes"]), _gib(gpu["memory_total_bytes"])),
        _pair(_number(gpu["power_watts"]), _number(gpu["power_limit_watts"])),
        "-" if degrees is None else f"{degrees:.0f} °C",
    ]


def _mig_row(device: Facts) -> list[str]:
    used, total = device["memory_used_bytes"], device["memory_total_bytes"]
    holders = ", ".join(filter(None, (_safe(owner(holder)) for holder in device.get("allocated_to") or ())))
    return [
        f"MIG {_safe(device.get('profile')) or cut(_safe(device['uuid']), 20)}",
        f"load {_ratio(device['load'])}",
        f"{_pair(_gib(used), _gib(total))} GiB",
        holders or ("free" if device.get("allocation") == "unallocated" else ""),
    ]


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{_RESET}"


def _plain(text: str, _style: str) -> str:
    return text


def _safe(text: object) -> str:
    """Return text without control characters: names come from outside, and must not control the terminal."""
    return printable(str(text or ""))


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else percent(ratio)


def _pair(used: str, total: str) -> str:
    return "-" if used == total == "-" else f"{used}/{total}"


def _gib(size: float | None) -> str:
    return "-" if size is None else f"{size / (1 << 30):.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _age(started: float | None, now: float) -> str:
    if started is None:
        return "-"
    seconds = max(0, int(now - started))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
