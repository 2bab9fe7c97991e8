"""Report of the findings, for a terminal of 80 columns and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gpugauge import __version__
from gpugauge.base.text import printable
from gpugauge.doctor.answer import StatusReply
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Level, exit_code
from gpugauge.doctor.table import Entry

WIDTH_COLUMNS = 80
_MARKS: dict[Level, tuple[str, int]] = {  # the mark and its SGR colour code
    "pass": ("pass", 32),
    "warning": ("WARN", 33),
    "failure": ("FAIL", 31),
    "skipped": ("skip", 2),
}
_TITLE_COLUMNS = 19
# Checks whose finding is in the answer about a process.
_ANSWERED = frozenset({"daemon", "state", "steps", "data_wait"})
_INDENT = " " * (2 + 4 + 2 + _TITLE_COLUMNS)


def lines(case: Case, entries: Iterable[Entry], colour: bool, *, answered: bool = True) -> Iterator[str]:
    """Yield the lines of the report as the findings arrive; `answered` is whether the daemon knows the process."""
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
    yield from _wrapped(_summary(reported, answered, bare=case.is_bare), "", "")


def below(case: Case, said: StatusReply, entries: Iterable[Entry], colour: bool) -> Iterator[str]:
    """Yield the problems that the checks found and that the answer about the process does not name."""
    found = 0
    for entry in entries:
        if entry.finding.severity and entry.check not in _ANSWERED and not said.explains(entry.finding.cause):
            if not found:
                yield from ("", _painted("Also found", 1, colour))
            found += 1
            yield from _entry(entry, colour)
    yield ""
    also = "" if found else "The checks found no other problem. "
    yield from _wrapped(f"{also}All checks: gpugauge doctor {case.options.pid} --checks", "", "")


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


def _summary(entries: Sequence[Entry], answered: bool, bare: bool) -> str:
    counts = {level: sum(e.finding.level == level for e in entries) for level in ("failure", "warning")}
    if not any(counts.values()):
        # From outside, a training that loses all its time looks well.
        unknown = "The checks from outside found no problem. What limits it is not known: the daemon did not answer."
        return "The checks found no problem." if answered else unknown
    worst = [entry.check for entry in entries if entry.finding.severity]
    if bare and worst == ["graphics_devices"]:
        return "There is no GPU here. The checks found no other problem."
    total = " and ".join(f"{n} {level}{'s' if n > 1 else ''}" for level, n in counts.items() if n)
    first = next(e.finding for e in entries if e.finding.severity == exit_code(x.finding for x in entries))
    return f"{total[0].upper()}{total[1:]}. Begin with: {printable(first.title)}."


def _wrapped(text: str, head: str, indent: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH_COLUMNS, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
    return wrapped or [head.rstrip()]


def _painted(text: str, code: int, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def document(case: Case, entries: Sequence[Entry], said: StatusReply | None = None) -> str:
    """Return the report as JSON, with the answer about the process, and the facts and timings from torch."""
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
            **({"answer": said.plain()} if said else {}),
            "findings": findings,
            # Only if a check has read them: the report does not start a measurement.
            "torch": dict(case.torch.facts) if "torch" in vars(case) else None,
            "timings": dict(case.timings.facts) if "timings" in vars(case) else None,
        },
        indent=2,
    )
