"""The alerts as a table for people: `gpugauge rules --explain`."""

from __future__ import annotations

import shutil
import textwrap

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.pack import alerts
from gpugauge.base.duration import format_duration

_HEAD = ("ALERT", "SEVERITY", "ONE FOR EACH", "FIRES WHEN", "AFTER")
_MIN_TEXT = 24
NEED_HOOK = ("TrainingRankBehind", "TrainingOnCpu", "TrainingOutOfMemory")
NEED_ALLOCATIONS = ("AllocatedGpuUnused",)


def as_table(p: Parameters, width: int | None = None) -> str:
    """Return a line for each alert, wrapped to the width of the terminal."""
    rows = [_HEAD]
    for alert in alerts(p):
        severity, after = p.severities.get(alert.name, alert.severity), format_duration(alert.hold)
        rows.append((alert.name, severity, alert.about, alert.when, after if alert.hold else "at once"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    rest = sum(widths) - widths[3] + 2 * (len(_HEAD) - 1)
    widths[3] = max(_MIN_TEXT, min(widths[3], (width or shutil.get_terminal_size((120, 24)).columns) - rest))
    lines = [line for row in rows for line in _wrapped(row, widths)]
    return "\n".join([*lines, "", *_notes(p)]) + "\n"


def _wrapped(row: tuple[str, ...], widths: list[int]) -> list[str]:
    texts = textwrap.wrap(row[3], widths[3]) or [""]
    cells = [(*row[:3], texts[0], row[4]), *(("", "", "", text, "") for text in texts[1:])]
    return ["  ".join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip() for line in cells]


def _notes(p: Parameters) -> list[str]:
    outside = f"processes with {p.training_matchers}" if p.training_matchers else "none"
    where = f", where {p.matchers}" if p.matchers else ""
    age, keep = format_duration(p.min_job_age), format_duration(p.keep_firing)
    by_action: dict[str, list[str]] = {}
    for alert in alerts(p):
        by_action.setdefault(alert.action, []).append(alert.name)
    actions = (f"{action} ({', '.join(names)})" for action, names in by_action.items() if action)
    return [
        f"Only with the hook: {', '.join(NEED_HOOK)}. Without it, TrainingStalled needs two GPUs.",
        f"Only with an allocation source, Slurm's prolog or the kubelet: {', '.join(NEED_ALLOCATIONS)}.",
        f"The label action, for what drains nodes: {', '.join(actions)}.",
        f"A job is a row of {p.name}:process_job:info{where}. A training is judged after {age}.",
        f"Trainings without the hook: {outside}, except the commands {p.serving}",
        f"Each alert keeps firing for {keep} after its condition ends. Runbook: {p.runbook_url or 'none'}",
    ]
