"""A process as rows of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpugauge.status.details import details, remark
from gpugauge.status.ended import FAILURES
from gpugauge.status.model import Problem, ProcessStatus
from gpugauge.status.owner import owner_words
from gpugauge.status.words import RUN_ADVICE, duration, numbered, percent
from gpugauge.web.page.draw import ABSENT, mark, name, of_sizes, text
from gpugauge.web.page.links import Links

COLUMNS = (
    ("GPU and program", "name"),
    ("State", "state"),
    ("Busy now", "now"),
    ("Busy, 5 min", "load"),
    ("Busy, 10 min", "chart"),
    ("Memory", "memory"),
    ("Power", "power"),
    ("Temp", "temperature"),
    ("Running", "running"),
)
"""Heading and CSS class of each column of the table."""
_LEVELS = ("none", "good", "poor", "bad")


def cells(figures: Sequence[tuple[str, str, float | None]]) -> str:
    """Return the cells of a row from column, HTML and the number to sort by; the other columns are empty."""
    known = {column: (shown, order) for column, shown, order in figures}
    return "".join(_cell(column, *known.get(column, ("", None))) for _, column in COLUMNS[1:])


def _cell(column: str, shown: str, order: float | None) -> str:
    sort = "" if order is None else f' data-sort="{order:.4g}"'
    return f'<td class="{column}"{sort}>{shown}</td>'


def level_order(level: str) -> int:
    """Return the place of a level, the best first."""
    return _LEVELS.index(level) if level in _LEVELS else 0


def process_rows(process: ProcessStatus, key: str, links: Links, now: float, *, nested: bool = False) -> str:
    """Return the rows of a process; `key` distinguishes it from others in the table, `now` is Unix time, `nested` is
    whether it stands below a MIG device.
    """
    ended = process.alive is False
    seconds = None if ended else running(process, now)
    memory, load = process.memory_used_bytes, process.load_5m
    figures = [
        ("state", _state(process, ended=ended), level_order(process.level)),
        ("load", percent(load), load),
        ("memory", of_sizes(memory), memory),
        ("running", ABSENT if seconds is None else duration(seconds), seconds),
    ]
    heading = f'<th scope="row" class="name">{_heading(process, links)}</th>'
    below = " nested" if nested else ""
    row = f'<tr class="process{below}" data-key="{key}">{heading}{cells(figures)}</tr>\n'
    return row + _notes(process, key, links, now, below)


def running(process: ProcessStatus, now: float) -> float | None:
    """Return the seconds from the start of a process to its end or a Unix time, None if the start is not known."""
    return None if process.started is None else (process.ended or now) - process.started


def _state(process: ProcessStatus, *, ended: bool) -> str:
    if ended:
        return mark("none", "ended")
    words = process.state_words
    if words == "no hook":
        return f'<a href="#no-hook">{mark("none", words)}</a>'
    level = "poor" if process.end_reason in FAILURES else process.tone
    return mark(level, words) if words else ABSENT


def _heading(process: ProcessStatus, links: Links) -> str:
    pid = process.pid
    shown = [f"<b>{name(process.command)}</b>" if process.command else ""]
    shown += [f'<span class="pid">pid {pid}</span>' if pid is not None else "", owner(process.workload, links)]
    return " ".join(filter(None, shown)) or ABSENT


def _notes(process: ProcessStatus, key: str, links: Links, now: float, below: str) -> str:
    """Return a row with what limits the process, with the advice where no problem has it, and what the hook reports;
    "" if nothing is known.
    """
    found = ((process.process, advice) for advice in (process.advice, None))
    listed = next((links.listed[key] for key in found if key in links.listed), "")
    limit = text(remark(process, listed=bool(listed)))
    evidence = f" ({text(process.evidence)})" if limit and process.evidence else ""
    # The evidence has the waits.
    facts = map(text, details(replace(process, data_wait_ratio=None) if evidence else process, now))
    advice = process.advice if process.advice != RUN_ADVICE and not listed else None
    doctor = links.doctor(process.pid) if (limit or advice) and process.ended is None and not listed else ""
    limit = f'<a href="{listed}">{limit}</a>' if limit and listed else limit
    parts = [
        f'<strong class="{process.tone}">{limit}</strong>{evidence}.' if limit else "",
        advice_words(process, links) if advice else "",
    ]
    last = " ".join(filter(None, (" · ".join(facts), doctor)))
    parts.append(f'<span class="facts">{last}</span>' if last else "")
    shown = " ".join(filter(None, parts))
    return note(shown, f"{key} notes", below) if shown else ""


def note(shown: str, key: str, below: str = "") -> str:
    """Return a row of the table with one cell; `below` is the class of one below a MIG device."""
    return f'<tr class="notes{below}" data-key="{key}"><td colspan="{len(COLUMNS)}">{shown}</td></tr>\n'


def advice_words(about: ProcessStatus | Problem, links: Links) -> str:
    """Return the advice on a process or a problem with its expected gain, as HTML; "" without an advice."""
    if not about.advice:
        return ""
    *steps, last = numbered(about.advice, about.advice_steps)
    shown = [links.advice(step, None) for step in steps] + [links.advice(last, about.runbook, about.gain_words)]
    return f"<b>Advice:</b> {shown[0]}" + "".join(f'<span class="step">{step}</span>' for step in shown[1:])


def owner(workload: Mapping[str, str], links: Links) -> str:
    """Return the owner of a process, as a link to the dashboard of its job where there is one."""
    words, address = owner_words(workload), links.job(workload)
    return f'<a href="{address}">{name(words)}</a>' if words and address else name(words) if words else ""
