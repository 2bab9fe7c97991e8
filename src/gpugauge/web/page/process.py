"""The table of processes as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpugauge.status.details import details, remark
from gpugauge.web.page.draw import ABSENT, duration, mark, percent, size, text

_COLUMNS = ("Workload", "Process id", "GPU memory", "Load over 5 minutes", "Running for", "State")

Facts = Mapping[str, Any]


def process_table(processes: Sequence[Facts], caption: str, now: float) -> str:
    """Return the table; `caption` is read by screen readers, `now` is Unix time."""
    names = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "".join(_process(process, now) for process in processes)
    return (
        f'<table><caption class="hidden">{caption}</caption>'
        f"<colgroup>{'<col>' * len(_COLUMNS)}</colgroup>"
        f'<thead class="hidden"><tr>{names}</tr></thead>\n<tbody>\n{rows}</tbody></table>\n'
    )


def _process(process: Facts, now: float) -> str:
    command = f"<b>{text(process['command'])}</b>" if process["command"] else ""
    name = " ".join(filter(None, (command, owner(process["workload"])))) or ABSENT
    pid = ABSENT if process["pid"] is None else process["pid"]
    age = ABSENT if process["started"] is None else duration(now - process["started"])
    memory, load = process.get("memory_used_bytes"), process.get("load_5m")
    words = process["state_words"]
    cells = (
        f'<td><span class="unit">pid</span> {pid}</td>',
        f"<td>{size(memory)}</td>",
        f'<td>{percent(load)} <span class="unit">load</span></td>',
        f'<td><span class="unit">for</span> {age}</td>',
        f"<td>{mark(process['level'], words) if words else ABSENT}</td>",
    )
    return f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>\n{_notes(process, now)}'


def _notes(process: Facts, now: float) -> str:
    """Return a table row with what limits the process, with the advice, and what the hook reports."""
    limit, facts = text(remark(process)), " · ".join(map(text, details(process, now)))
    evidence = f" <span>({text(process['evidence'])}.)</span>" if process["evidence"] else ""
    advice = f" <span><b>Advice:</b> {text(process['advice'])}</span>" if process["advice"] else ""
    parts = [f"<strong>{limit}</strong>{evidence}" if limit else "", advice, f'<span class="facts">{facts}</span>']
    shown = " ".join(filter(None, parts if facts else parts[:-1]))
    return f'<tr class="cause"><td colspan="{len(_COLUMNS)}">{shown}</td></tr>\n' if shown else ""


def owner(workload: Mapping[str, str]) -> str:
    """Return the owner of a process by names: pod or container, job, user."""
    kind, job = workload.get("kind"), workload.get("job_id", "")
    pod = "/".join(workload[key] for key in ("namespace", "pod", "container") if workload.get(key))
    if kind != "pod":
        pod = f"container {workload['container']}" if workload.get("container") else ""
        job = f"Slurm job {job}" if kind == "slurm" and job else job
    else:
        job = "" if workload.get("pod") else f"pod {job[:8]}"
    user = workload.get("user", "")
    return text(" · ".join(filter(None, (pod, job, f"user {user}" if user else ""))))
