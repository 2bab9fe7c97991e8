"""Report of the findings, for a terminal of 80 columns and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter

from gpugauge import __version__
from gpugauge.base.text import printable
from gpugauge.doctor import DEFAULT_URL
from gpugauge.doctor.answer import StatusReply
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Level
from gpugauge.doctor.table import Entry, exit_code
from gpugauge.status.words import HOOK_COMMAND
from gpugauge.terminal.columns import Writer
from gpugauge.terminal.rows import problem_words, processes, to_do
from gpugauge.terminal.style import BOLD, DIM, GREEN, RED, YELLOW

WIDTH_COLUMNS = 80
_MARKS: dict[Level, tuple[str, str]] = {
    "pass": ("pass", GREEN),
    "warning": ("WARN", YELLOW),
    "failure": ("FAIL", RED),
    "skipped": ("skip", DIM),
}
_TITLE_COLUMNS = 19
# Checks whose finding is in the answer about a process.
_ANSWERED = frozenset({"daemon", "state"})
_INDENT = " " * (2 + 4 + 2 + _TITLE_COLUMNS)


def lines(case: Case, entries: Iterable[Entry], colour: bool, *, answered: bool = True) -> Iterator[str]:
    """Yield the lines of the report as the findings arrive, those under a heading by their severity; `answered` is
    whether the daemon knows the process.
    """
    writer = Writer(WIDTH_COLUMNS, colour=colour)
    if case.options.simulation is not None:
        name = case.options.simulation["scenario"]["name"]
        yield writer.paint(f"SIMULATED: the GPUs below do not exist (scenario {printable(name)}).", YELLOW)
    elif case.options.pid is None and case.reported and case.reported.simulated:
        yield writer.paint("SIMULATED: the GPUs of the daemon do not exist.", YELLOW)
    if case.options.pid is None and case.options.url != DEFAULT_URL and case.daemon[0] is None:
        yield from writer.text(f"{printable(case.daemon[1])}; these are the checks without it.", "", YELLOW)
    if case.options.pid is None and case.reported:
        yield from writer.text(printable(f"{case.reported.host}: {case.reported.answer}"), "", BOLD, hanging=2)
        yield ""
    reported: list[Entry] = []
    for heading, found in groupby(entries, key=attrgetter("group")):
        yield from ([""] if reported or case.simulated else [])
        yield writer.paint(heading, BOLD)
        reported += (ordered := sorted(found, key=_place))
        yield from (line for entry in ordered for line in _entry(entry, writer))
    for problem in () if case.process else case.gpu_problems:  # the answer about a process has the steps
        if problem.steps:
            yield from ("", *writer.text(problem_words(problem)))
            yield from (line for step in to_do(problem) for line in writer.text(step, "  ", hanging=3))
    yield from ("", *writer.text(_summary(reported, answered, case)))
    yield from writer.text(f"Next: {command}") if (command := _next(reported, case)) else ()


def below(case: Case, said: StatusReply, entries: Iterable[Entry], colour: bool) -> Iterator[str]:
    """Yield the problems that the checks found and that the answer about the process does not name."""
    facts = said.process.facts if said.process else None
    ill = said.gpu_problems() or (
        facts and (facts.level in {"bad", "poor"} or any(row.topic != "hook" for row in facts.changes))
    )
    writer, also = (
        Writer(WIDTH_COLUMNS, colour=colour),
        f"Its checks found no {'other ' if ill else ''}problem. ",
    )
    for entry in entries:
        if entry.finding.severity and entry.check not in _ANSWERED and not said.has(entry.finding):
            if also:
                yield from ("", writer.paint("Also found", BOLD))
            also = ""
            yield from _entry(entry, writer)
    url = f" --url {case.options.url}" if case.options.url != DEFAULT_URL else ""
    yield from ("", *writer.text(f"{also}All checks: gpugauge doctor {case.options.pid}{url} --checks"))


def _place(entry: Entry) -> tuple[int, bool]:
    return -entry.finding.severity, entry.finding.level == "skipped"


def _next(entries: Iterable[Entry], case: Case) -> str:
    """Return what to do after the checks of a machine, in words that end with a command; "" if that is nothing."""
    if case.options.pid is not None or case.simulated:
        return ""
    severe = any(e.finding.severity and not (case.is_bare and e.check == "graphics_devices") for e in entries)
    url = case.options.url
    at = "" if url == DEFAULT_URL else f" --url {url}"
    status = case.reported
    if status is None:
        return "" if severe else f"see what trainings do: gpugauge serve, and in another terminal {HOOK_COMMAND}"
    ill = [p.facts for p in processes(status) if any(p.facts.process in each.processes for each in status.problems)]
    pid = next((facts.pid for facts in ill if facts.pid is not None), None)
    if severe or pid is None:
        return f"what the programs do, and the problems: gpugauge status{at}" if severe or status.problems else ""
    return f"what limits {printable(ill[0].command or 'the process')}: gpugauge doctor {pid}{at}"


def _entry(entry: Entry, writer: Writer) -> Iterator[str]:
    finding = entry.finding
    mark, colour = _MARKS[finding.level]
    found = printable(finding.found) + (f" [{finding.cause}]" if finding.cause else "")
    first, *more = writer.text(found, f"  {mark}  {printable(finding.title):<{_TITLE_COLUMNS}}")
    yield first.replace(mark, writer.paint(mark, colour), 1)
    yield from more
    if finding.advice:
        yield from writer.text(printable(finding.advice), f"{_INDENT}-> ")


def _summary(entries: Sequence[Entry], answered: bool, case: Case) -> str:
    counts = {level: sum(e.finding.level == level for e in entries) for level in ("failure", "warning")}
    if not any(counts.values()):
        # From outside, a training that loses all its time looks well.
        unknown = "The checks from outside found no problem. What limits it is not known: the daemon did not answer."
        if case.options.pid is None and case.reported and case.reported.problems:
            return "The checks of the machine found no other problem."
        return "The checks found no problem." if answered else unknown
    worst = [entry.check for entry in entries if entry.finding.severity]
    if case.is_bare and worst == ["graphics_devices"]:
        return "There is no GPU here. The checks found no other problem."
    total = " and ".join(f"{n} {level}{'s' if n > 1 else ''}" for level, n in counts.items() if n)
    first = next(e.finding for e in entries if e.finding.severity == max(x.finding.severity for x in entries))
    where = first.found.partition(":")[0].partition(" (")[0] if first.found.startswith("GPU") else ""
    return f"{total[0].upper()}{total[1:]}. Begin with: {printable(', '.join(filter(None, (first.title, where))))}."


def document(case: Case, entries: Sequence[Entry], said: StatusReply | None = None) -> str:
    """Return the report as JSON, with the answer about the process, and the facts and timings from torch."""
    findings = [
        {"group": e.group, "check": e.check, **asdict(e.finding), "advice": e.finding.advice or None} for e in entries
    ]
    code = {"answered": said is None or said.process is not None, "wasted": case.wasted}
    return json.dumps(
        {
            "version": __version__,
            "simulated": case.simulated or bool(case.reported and case.reported.simulated),
            "exit_code": exit_code(entries, **code),
            **({"answer": said.plain()} if said else {}),
            "findings": findings,
            "repair": [step for problem in case.gpu_problems for step in problem.steps],
            # Only if a check has read them: the report does not start a measurement.
            "torch": dict(case.torch.facts) if "torch" in vars(case) else None,
            "timings": dict(case.timings.facts) if "timings" in vars(case) else None,
        },
        indent=2,
    )
