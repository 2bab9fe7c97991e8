"""Report of the findings, for a terminal of 80 columns and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gpugauge import __version__
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Level, exit_code
from gpugauge.doctor.table import Entry
from gpugauge.text import printable

WIDTH_COLUMNS = 80
_MARKS: dict[Level, tuple[str, int]] = {  # the mark and its SGR colour code
    "pass": ("pass", 32),
    "warning": ("WARN", 33),
    "failure": ("FAIL", 31),
    "skipped": ("skip", 2),
}
_TITLE_COLUMNS = 19
_INDENT = " " * (2 + 4 + 2 + _TITLE_COLUMNS)


def lines(case: Case, entries: Iterable[Entry], colour: bool) -> Iterator[str]:
    """Yield the lines of the report as the findings arrive."""
    if case.options.simulation is not None:
        name = case.options.simulation["scenario"]["name"]
        yield _painted(f"SIMULATED: the GPUs below do not exist (scenario {printable(name)}).", 33, colour)
    group, reported = "", []
    for entry in entries:
        reported.append(entry)
        if entry.group != group:
            if reported[1:] or case.simulated:
                yield ""
            group = entry.group
            yield _painted(group, 1, colour)
        yield from _entry(entry, colour)
    yield ""
    yield from _wrapped(_summary(reported), "", "")


def _entry(entry: Entry, colour: bool) -> Iterator[str]:
    finding = entry.finding
    mark, code = _MARKS[finding.level]
    found = printable(finding.found) + (f" [{finding.cause}]" if finding.cause else "")
    head = f"  {mark}  {printable(finding.title):<{_TITLE_COLUMNS}}"
    first, *more = _wrapped(found, head, _INDENT)
    yield first.replace(mark, _painted(mark, code, colour), 1)
    yield from more
    if finding.advice:
        yield from _wrapped(printable(finding.advice), _INDENT + "-> ", _INDENT + "   ")


def _summary(entries: Sequence[Entry]) -> str:
    counts = {level: sum(e.finding.level == level for e in entries) for level in ("failure", "warning")}
    if not any(counts.values()):
        return "The checks found no problem."
    total = " and ".join(f"{n} {level}{'s' if n > 1 else ''}" for level, n in counts.items() if n)
    first = next(e.finding for e in entries if e.finding.severity == exit_code(x.finding for x in entries))
    return f"{total[0].upper()}{total[1:]}. Begin with: {printable(first.title)}."


def _wrapped(text: str, head: str, indent: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH_COLUMNS, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
    return wrapped or [head.rstrip()]


def _painted(text: str, code: int, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def document(case: Case, entries: Sequence[Entry]) -> str:
    """Return the report as JSON, with the facts and timings from torch."""
    findings = [
        {
            "group": entry.group,
            "check": entry.check,
            "level": entry.finding.level,
            "title": entry.finding.title,
            "found": entry.finding.found,
            "advice": entry.finding.advice or None,
            "cause": entry.finding.cause,
        }
        for entry in entries
    ]
    return json.dumps(
        {
            "version": __version__,
            "simulated": case.simulated,
            "exit_code": exit_code(entry.finding for entry in entries),
            "findings": findings,
            # Only if a check has read them: the report does not start a measurement.
            "torch": dict(case.torch.facts) if "torch" in vars(case) else None,
            "timings": dict(case.timings.facts) if "timings" in vars(case) else None,
        },
        indent=2,
    )
