"""The table of `gpugauge status` for a terminal, 80 columns wide."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import Any, TypeAlias

from gpugauge.status.down import down_phrase
from gpugauge.status.steps import loader_advice, step_sentence
from gpugauge.text import printable

_WIDTH = 80
_NOTE_INDENT = 16
_RESET, _BOLD, _DIM, _RED, _YELLOW, _GREEN = (f"\x1b[{code}m" for code in (0, 1, 2, 31, 33, 32))

Facts: TypeAlias = Mapping[str, Any]
_Paint: TypeAlias = Callable[[str, str], str]


def table(facts: Facts, colour: bool, now: float) -> str:
    """Return the table of the facts of /api/v1/status; `now` is Unix time."""
    paint = _paint if colour else _plain
    lines = [*_heading(facts, paint)]
    lines.append(
        paint(f"{'GPU':>3}  {'NAME':<24}{'LOAD':>6}{'5 MIN':>7}  {'MEMORY GiB':>13}{'POWER W':>11}{'TEMP':>6}", _BOLD)
    )
    for gpu in facts["gpus"]:
        lines += _gpu(gpu, paint, now)
    if facts.get("without_gpu"):
        lines += ["", paint("With torch, but on no GPU:", _BOLD)]
        for process in facts["without_gpu"]:
            lines += _process(process, paint, now)
    if not facts["gpus"] and (facts.get("driver") or {}).get("up"):
        lines.append("no GPU")
    return "\n".join(lines) + "\n"


def _heading(facts: Facts, paint: _Paint) -> list[str]:
    lines = []
    if facts.get("simulated"):
        lines.append(paint("SIMULATED: these GPUs do not exist.", _YELLOW))
    driver = facts.get("driver") or {}
    if driver.get("released_until"):
        until = time.strftime("%H:%M:%S UTC on %-d %B", time.gmtime(driver["released_until"]))
        lines.append(paint(f"The driver is released until {until}: the GPUs are not watched.", _YELLOW))
    elif not driver.get("up"):
        lines.append(paint(f"The driver is not available: {_safe(driver.get('reason'))}", _RED))
        lines += wrap(_safe(driver.get("advice")), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    if facts.get("failing_collectors"):
        lines += [
            paint(_cut(f"Collector {_safe(name)} fails: {_safe(error)}", _WIDTH), _RED)
            for name, error in facts["failing_collectors"].items()
        ]
    return lines


def _gpu(gpu: Facts, paint: _Paint, now: float) -> list[str]:
    index = "?" if gpu["index"] is None else str(gpu["index"])
    name = _cut((_safe(gpu.get("name")) or _safe(gpu["uuid"])).removeprefix("NVIDIA "), 23)
    if not gpu["up"]:
        return [paint(f"{index:>3}  {name:<24}{down_phrase(gpu.get('down_reason'))}", _RED)]
    memory = f"{_gib(gpu['memory_used_bytes'])}/{_gib(gpu['memory_total_bytes'])}"
    power = f"{_number(gpu['power_watts'])}/{_number(gpu['power_limit_watts'])}"
    degrees = _number(gpu["temperature_celsius"])
    load = paint(f"{_percent(gpu['load']):>6}{_percent(gpu['load_5m']):>7}", _load_colour(gpu))
    lines = [f"{index:>3}  {name:<24}{load}  {memory:>13}{power:>11}{degrees:>6}"]
    for process in gpu["processes"]:
        lines += _process(process, paint, now)
    if gpu["processes_hidden"]:
        lines.append(paint(f"       and {gpu['processes_hidden']} more processes", _DIM))
    if not gpu["processes"]:
        owners = ", ".join(filter(None, (_who(w) for w in gpu["allocated_to"])))
        if owners:
            lines.append(paint(_cut(f"       held by {owners}, no process", _WIDTH), _YELLOW))
        elif gpu["allocation"] == "unallocated":
            lines.append(paint("       free", _DIM))
    return lines


def _process(process: Facts, paint: _Paint, now: float) -> list[str]:
    """Return a line: pid, load, memory, age, owner, and the state if it is known. More lines show the parts of the
    steps of a training on the CPU, and what is not known.
    """
    pid = "-" if process["pid"] is None else str(process["pid"])
    figures = f"{_percent(process.get('load_5m')):>5}{_gib(process.get('memory_used_bytes')):>7}"
    head = f"       {pid:>8}{figures}{_age(process['started'], now):>6}  "
    state = _safe(process.get("state")).replace("unknown", "")
    if process.get("limited_by"):
        state = f"{state or 'limited'}: {_safe(process['limited_by'])}"
    tail = f"  [{_cut(state, 28)}]" if state else ""
    who = " ".join(filter(None, (_who(process["workload"]), _safe(process.get("command")))))
    width = _WIDTH - len(head) - len(tail)
    line = head + _cut(who or "?", width) + (paint(tail, _YELLOW) if tail else "")
    on_cpu = process.get("state") == "training_on_cpu"
    notes = [step_sentence(process.get("step_shares") or {}) if on_cpu else ""]
    notes.append(loader_advice(process.get("undecidable") or ()))
    indent = " " * _NOTE_INDENT
    wrapped = [wrap(note, _WIDTH, initial_indent=indent, subsequent_indent=indent) for note in notes if note]
    return [line, *(paint(part, _DIM) for note in wrapped for part in note)]


def _who(workload: Mapping[str, str]) -> str:
    """Return the shortest name by which a person recognizes a workload."""
    pod = "/".join(_safe(workload[key]) for key in ("namespace", "pod") if workload.get(key))
    job = _safe(workload.get("job_id")) if not pod else ""
    job = {"slurm": f"job {job}", "pod": f"pod {job[:8]}"}.get(workload.get("kind", ""), job) if job else ""
    job = job or _safe(workload.get("container"))
    user = _safe(workload.get("user")) if not pod else ""
    return " ".join(filter(None, (pod or job, user)))


def _load_colour(gpu: Facts) -> str:
    load = gpu["load_5m"] if gpu["load_5m"] is not None else gpu["load"]
    if load is None or not gpu["processes"]:
        return _DIM
    return _GREEN if load >= 0.8 else _YELLOW if load >= 0.2 else _RED


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{_RESET}"


def _plain(text: str, _style: str) -> str:
    return text


def _safe(text: object) -> str:
    """Return text without control characters: names come from outside, and must not control the terminal."""
    return printable(str(text or ""))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f} %"


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
