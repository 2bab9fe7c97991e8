"""The lines of `gpugauge top`, without a terminal: GPUs with their history, processes sorted and filtered, details."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpugauge.status.details import details, last_use, remark
from gpugauge.status.owner import owner
from gpugauge.status.use import gpus_words
from gpugauge.terminal.columns import Column, Grid
from gpugauge.terminal.values import age, gib, load_of, number, pair, ratio, safe

Status: TypeAlias = Mapping[str, Any]
Line: TypeAlias = "tuple[str, str, str]"  # key, text, level

HISTORY_CELLS = 12
_BARS = "▁▂▃▄▅▆▇█"
_GPUS = (
    Column("GPU", right=True),
    Column("STATE"),
    Column("LOAD", right=True),
    Column("10 MINUTES", rank=3),
    Column("5 MIN", right=True, rank=4),
    Column("MEMORY GiB", right=True, rank=2),
    Column("POWER W", right=True, rank=5),
    Column("TEMP", right=True, rank=1),
    Column("NAME OR PROBLEM", least=20),
)
_PROCESSES = (
    Column("PID", right=True),
    Column("GPU", least=4),
    Column("LOAD", right=True),
    Column("GiB", right=True, rank=2),
    Column("AGE", right=True, rank=3),
    Column("STATE", rank=1),
    Column("LOST", right=True),
    Column("PROGRAM", least=8),
    Column("CAUSE", least=8),
    Column("OWNER", least=20, rank=4),
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process with its use of all its GPUs: `load` is the mean over them."""

    facts: Status
    gpus: Sequence[dict[str, Any]]
    load: float | None
    memory_bytes: float | None

    @property
    def where(self) -> str:
        """The indexes of its GPUs, as `0-3`, and the profiles of its MIG devices."""
        own = self.facts.get("mig") or ()
        profiles = [d["profile"] or d["uuid"] for gpu in self.gpus for d in gpu.get("mig") or () if d["uuid"] in own]
        return " ".join([gpus_words(self.gpus).partition(" ")[2], *map(safe, profiles)]) if self.gpus else "-"

    @property
    def owner(self) -> str:
        """Its pod, job, container or unit, and its user."""
        return owner(self.facts["workload"])


# By name: the value by which processes are sorted, the largest first; None comes last.
SORTS: Mapping[str, Callable[[Process], float | str | None]] = {
    "lost": lambda p: p.facts["limited_by_ratio"],
    "load": lambda p: p.load,
    "memory": lambda p: p.memory_bytes,
    "age": lambda p: None if p.facts["started"] is None else -p.facts["started"],
    "gpu": lambda p: -(p.gpus[0]["index"] or 0) if p.gpus else None,
    "pid": lambda p: p.facts["pid"],
    "program": lambda p: p.facts["command"],
}


def processes(facts: Status) -> list[Process]:
    """Return each process once: those on GPUs by the index of the first, those without a GPU, those that have ended."""
    found: dict[str, tuple[Status, list[dict[str, Any]], list[Status]]] = {}
    for gpu in facts["gpus"]:
        for process in gpu["processes"]:
            entry = found.setdefault(process["process"], (process, [], []))
            entry[1].append(gpu)
            entry[2].append(process)
    result = []
    for process, gpus, uses in found.values():
        loads = [use["load_5m"] for use in uses if use["load_5m"] is not None]
        sizes = [use["memory_used_bytes"] for use in uses if use["memory_used_bytes"] is not None]
        load = sum(loads) / len(loads) if loads else None
        result.append(Process(process, gpus, load, sum(sizes) if sizes else None))
    rest = [*(facts.get("without_gpu") or ()), *(facts.get("ended") or ())]
    return result + [Process(process, (), None, None) for process in rest]


def chosen(facts: Status, sort: str, reverse: bool, text: str) -> list[Process]:
    """Return the processes whose line, owner or advice contains a text, in an order of SORTS."""
    value, wanted = SORTS[sort], text.casefold()
    found = [process for process in processes(facts) if wanted in _searched(process).casefold()]
    known = [process for process in found if value(process) is not None]
    known.sort(key=lambda process: value(process) or 0, reverse=(sort != "program") != reverse)
    return known + [process for process in found if value(process) is None]


def _searched(process: Process) -> str:
    facts = process.facts
    words = ("pid", "command", "state_words", "limited_by", "limited_by_words", "process")
    return " ".join([*(str(facts.get(word) or "") for word in words), process.owner, f"gpu {process.where}"])


def gpu_lines(facts: Status, width: int) -> tuple[str, list[Line]]:
    """Return the heading and a line for each GPU, followed by its MIG devices: uuid, text and level."""
    rows: list[tuple[str, list[str], str]] = []
    for gpu in facts["gpus"]:
        rows.append((gpu["uuid"], _gpu_row(gpu), gpu["level"]))
        rows += [(device["uuid"], _mig_row(device), "none") for device in gpu["mig"]]
    grid = Grid(_GPUS, [row for _, row, _ in rows], width)
    return grid.heading(), [(uuid, grid.line(row), level) for uuid, row, level in rows]


def process_lines(shown: Sequence[Process], now: float, width: int) -> tuple[str, list[Line]]:
    """Return the heading and a line for each process: its label, text and level."""
    rows = [_process_row(process, now) for process in shown]
    grid = Grid(_PROCESSES, rows, width)
    keyed = zip(shown, rows, strict=True)
    return grid.heading(), [(p.facts["process"], grid.line(row), p.facts["level"]) for p, row in keyed]


def _gpu_row(gpu: Status) -> list[str]:
    degrees = gpu["temperature_celsius"]
    name = (safe(gpu["name"]) or safe(gpu["uuid"])).removeprefix("NVIDIA ")
    # The summary of a GPU that is well has its programs, which are in the list below.
    trouble = safe(gpu["summary"]) if gpu["level"] in {"bad", "poor"} else ""
    return [
        "?" if gpu["index"] is None else str(gpu["index"]),
        safe(gpu["state_words"]),
        load_of(gpu, "load"),
        sparkline([share for _, share in gpu["load_10m"]]),
        load_of(gpu, "load_5m"),
        pair(gib(gpu["memory_used_bytes"]), gib(gpu["memory_total_bytes"])),
        pair(number(gpu["power_watts"]), number(gpu["power_limit_watts"])),
        "-" if degrees is None else f"{degrees:.0f} °C",
        trouble or name,
    ]


def _mig_row(device: Status) -> list[str]:
    memory = pair(gib(device["memory_used_bytes"]), gib(device["memory_total_bytes"]))
    return [
        "",
        f"MIG {device['state_words']}".strip(),
        ratio(device["load"]),
        "",
        "",
        memory,
        "",
        "",
        safe(device["profile"]) or safe(device["uuid"]),
    ]


def _process_row(process: Process, now: float) -> list[str]:
    facts = process.facts
    return [
        "-" if facts["pid"] is None else str(facts["pid"]),
        process.where,
        ratio(process.load),
        gib(process.memory_bytes),
        age(facts["started"], facts["ended"] or now),
        safe(facts["state_words"]) or "-",
        ratio(facts["limited_by_ratio"]),
        safe(facts["command"]) or "-",
        safe(facts["limited_by_words"] or facts["end_words"]) or "-",
        safe(process.owner) or "-",
    ]


def sparkline(shares: Sequence[float | None], width: int = HISTORY_CELLS) -> str:
    """Return a load over time as bars, the newest at the right; a blank where it is unknown."""
    cells = []
    for cell in range(width):
        begin, end = cell * len(shares) // width, (cell + 1) * len(shares) // width
        known = [share for share in shares[begin : max(end, begin + 1)] if share is not None]
        mean = sum(known) / len(known) if known else None
        cells.append(" " if mean is None else _BARS[min(len(_BARS) - 1, int(mean * len(_BARS)))])
    return "".join(cells)


def process_details(process: Process, now: float, *, simulated: bool = False) -> list[str]:
    """Return what is known of a process, one fact a line, the cause first. No command can examine a simulated one."""
    facts = process.facts
    title = f"{facts['command'] or '-'}, pid {facts['pid'] if facts['pid'] is not None else 'unknown'}"
    lines = [title, remark(facts), f"→ {facts['advice']}" if facts["advice"] else ""]
    lines += [f"Expected: {facts['gain_words']}." if facts["gain_words"] else "", *details(facts, now)]
    lines += [f"owner: {process.owner}" if process.owner else "", f"runbook: {facts['runbook']}"]
    lines += [f"label: process={facts['process']}"]
    if facts["pid"] is not None and not simulated and facts["ended"] is None:
        lines.append(f"evidence: gpugauge doctor {facts['pid']}")
    return [safe(line) for line in lines if line and line != "runbook: None"]


def gpu_of(facts: Status, uuid: str | None) -> Status | None:
    """Return the GPU with a uuid, or with a MIG device of that uuid."""
    return next((g for g in facts["gpus"] if uuid in {g["uuid"], *(d["uuid"] for d in g["mig"])}), None)


def gpu_details(gpu: Status) -> list[str]:
    """Return what is known of a GPU, one fact a line, the trouble first."""
    lines = [gpu["summary"], f"→ {gpu['advice']}" if gpu["advice"] else "", last_use(gpu)]
    lines += [f"{each['text']} → {each['advice']}" for each in gpu["health"]]
    lines += [f"{xid['text']}" for xid in gpu["xids"]]
    lines += [f"clocks lowered: {', '.join(gpu['slowed_by'])}"] if gpu["slowed_by"] else []
    lines += [
        f"MIG {d['profile'] or d['uuid']}: load {ratio(d['load'])}, "
        f"{pair(gib(d['memory_used_bytes']), gib(d['memory_total_bytes']))} GiB"
        for d in gpu["mig"]
    ]
    holders = ", ".join(filter(None, map(owner, gpu["allocated_to"])))
    lines += [f"allocated to {holders}" if holders else "", f"{gpu['uuid']}, PCI {gpu['pci_bus_id'] or 'unknown'}"]
    return [safe(line) for line in lines if line]
