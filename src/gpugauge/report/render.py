"""A report as blocks of words, and these as text for a terminal, as Markdown, or as the body of an HTML file."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from gpugauge.base import serving
from gpugauge.base.text import printable, whole
from gpugauge.report.model import Cost, GpuHours, Report
from gpugauge.status.history import WASTED_RATIO
from gpugauge.status.words import SIMULATED, cause_phrase, duration, percent, plural, quantity
from gpugauge.terminal.columns import cut
from gpugauge.wire.shares import sentence

_DIFFERENT_SHARE, _DIFFERENT_STEP = 0.1, 1.1  # from which ranks are listed
_MOST_RANKS, _MOST_NAMES = 16, 4
_SHOWN, _SMALL = 0.02, 0.01  # share of the held time from which on a cause has a row, and the rest of them
_LEAST_COLUMN = 16  # characters that the last column of a table has beside the others
_LEAST_TEXT = 8  # likewise of another column of text
# By the share that is lost, as the glossary has the words.
_SLOWED = 0.1
_JUDGED = {WASTED_RATIO: "Wasted", _SLOWED: "Slowed", 0.0: "Used well"}
_GIB = 1 << 30
_FURTHER = re.compile(r"; (then|also) ")  # before the further steps of an advice


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a report: its heading, sentences, and a table whose first row is its head."""

    heading: str = ""
    lines: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    numbers: frozenset[int] = frozenset()  # columns that are aligned on the right


def blocks(report: Report) -> list[Block]:
    """Return the report on a job."""
    found = [part(report) for part in (_head, _hours, _change, _figures, _ranks)]
    return [block for block in (*found, Block("What could not be known", report.unknown)) if block.lines or block.table]


def hours(amount: float, held: float) -> str:
    """Return GPU hours in words, minutes beside less than one hour `held`, with the decimals that are worth it beside
    `held`, so that sums add up.
    """
    scale, unit = (60.0, "min") if held < 1 else (1.0, "h")
    decimals = next((n for n, least in enumerate((100, 10, 0.1)) if scale * held >= least), 3)
    return f"{scale * amount:,.{decimals}f} GPU {unit}"


def _rounded(amount: float, held: float) -> float:
    """Return GPU hours as hours() shows them."""
    return float(hours(amount, held).split()[0].replace(",", "")) / (60.0 if held < 1 else 1.0)


def amount(value: float | None, unit: str) -> str:
    """Return a number with its unit, "-" if it is not known."""
    return "-" if value is None else f"{quantity(value)} {unit}".strip()


def listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Return a few names, and how many more there are."""
    more = len(names) - most
    return ", ".join([*names[:most], *([f"and {more} more"] if more > 0 else [])])


def when(second: float) -> str:
    """Return a time in UTC."""
    return f"{datetime.fromtimestamp(second, timezone.utc):%Y-%m-%d %H:%M} UTC"


def _head(report: Report) -> Block:
    users = f" of user {listed(report.users)}" if report.users else ""
    ends = "still running" if report.running else f"ended {when(report.end)}"
    why = f" ({', '.join(report.end_words)})" if report.end_words and not report.running else ""
    devices = f"{plural(report.devices, 'GPU')} on " if report.devices else ""
    places = f"{devices}{plural(len(report.nodes), 'node')} ({listed(report.nodes)})"
    places += _seen(report, ", {} of {} ranks measured")
    life = f"{duration(report.end - report.begin)} from {when(report.begin)}, {ends}{why}"
    programs = [name for name in report.programs if name not in report.title]
    named = f"program{'s' * (len(programs) > 1)} {listed(programs)}; " if programs else ""
    where = ", ".join(filter(None, (places, listed([name for name in report.products if name]))))
    runs = [f"{report.runs} runs, one after the other: the figures are those of all."] if report.runs > 1 else []
    overlap = f"{len(report.parallel)} of its runs overlapped: the figures are those of all, and the table has each."
    runs += [overlap] * bool(report.parallel)
    first = [*[SIMULATED] * report.simulated, f"{named}{where}; {life}.", *runs]
    return Block(f"{report.title}{users}", first)


def _seen(report: Report, words: str) -> str:
    """Return words about the ranks of which some were not seen, else ""."""
    world, ranks = whole(report.settings.get("world size")) or 0, {use.rank for use in report.processes} - {None}
    return words.format(len(ranks), world) if 0 < len(ranks) < world else ""


def _hours(report: Report) -> Block:
    found = report.gpu_hours
    if found is None or not found.held:
        shares = {"data": report.step_shares.get("data", 0.0), "a CPU": report.rest_shares.get("runnable", 0.0)}
        shares["slower ranks"] = report.step_shares.get("peers", 0.0)
        waits = sorted(((share, what) for what, share in shares.items() if share >= _SLOWED), reverse=True)
        words = ", and ".join(f"for {percent(share)} of its time it waited for {what}" for share, what in waits)
        waited = f": {words}" if words else ""
        return Block() if report.devices else Block(lines=[f"It ran on the CPU and held no GPU{waited}."])
    held, lost = _rounded(found.held, found.held), _rounded(found.all_lost, found.held)
    if serving.only_serve(report.programs):
        return Block(lines=[f"An inference server, which is not judged: it held {hours(held, found.held)}."])
    judged = next(word for least, word in _JUDGED.items() if found.lost_share >= least)
    judged += _seen(report, " ({} of {} ranks measured)")
    if not lost:
        return Block(lines=[f"{judged}: none of the {hours(held, found.held)} that it held was lost."])
    more = "" if all(use.hook for use in report.processes) else ": the hook shows more (gpugauge run)"
    phrases = {"unknown": f"loses time that no measured value explains{more}"}
    large = {cause: each for cause, each in found.lost.items() if each >= _SHOWN * found.held}
    named = [(phrases.get(cause, cause_phrase(cause)), each) for cause, each in large.items()]
    rest = lost - sum(_rounded(each, found.held) for _, each in named)
    named += [("loses the rest to smaller causes", rest)] * (rest >= _SMALL * found.held)
    rows = [(hours(each, found.held), percent(each / found.held), phrase) for phrase, each in named] if large else []
    of = f"{hours(lost, found.held).split()[0]} of {hours(held, found.held)} held"
    lines = [f"{judged}: {percent(found.lost_share)} of its GPU time was lost, {of}."]
    return Block("", lines, [("lost", "share", "because the program"), *rows] if rows else [], frozenset({0, 1}))


def _change(report: Report) -> Block:
    change = report.change
    if change is None:
        nothing = "Nothing to change was found: no loss and no wait is large enough to be named."
        alone = [nothing] * bool(report.steps)
        return Block("Change first", report.mistakes) if report.mistakes else Block(lines=alone)
    frees = f"it frees {plural(report.devices, 'GPU')}" if change.cause == "unused_gpus" else ""
    gains = change.gain_words or frees or "how much that gains is not known"
    first, *more = _FURTHER.split(change.change)
    further = [f"{_capital(word)}: {step}." for word, step in zip(more[::2], more[1::2], strict=True)]
    also = [f"Also: {mistake}." for mistake in report.mistakes]
    if change.cause == "host_bound" and further:  # each step takes a part of it
        return Block("Change first", [f"{_capital(first)}.", *further, f"Together {gains}.", *also])
    return Block("Change first", [f"{_capital(first)}.", f"{_capital(gains)}.", *further, *also])


def _capital(text: str) -> str:
    """Return a sentence with a capital, unless it begins with code."""
    return f"{text[:1].upper()}{text[1:]}" if text.partition(" ")[0].isalpha() else text


def _figures(report: Report) -> Block:
    each = f" of {duration(report.step_seconds)} each" if report.step_seconds else ""
    alone = max((report.rest_shares or report.step_shares).get(name, 0.0) for name in ("running", "rest"))
    shares = sentence(report.step_shares, report.rest_shares) if alone < 0.995 else ""
    steps = f"{quantity(report.steps)} step{'s' * (report.steps != 1)}{each}" if report.steps else ""
    shares = f"of the time of its training thread: {shares}" if shares else ""
    memory, limit = (
        f"{size / _GIB:.1f} GiB" if size else "" for size in (report.memory_peak_bytes, report.memory_limit_bytes)
    )
    tensors = " in tensors" if all(use.hook for use in report.processes) else ""
    build = report.settings.get("torch", "")
    kwh = None if report.energy_joules is None else report.energy_joules / 3.6e6
    cost = report.cost or Cost("", None, None, None, None)
    rows = [
        ("Steps", "; ".join(filter(None, (steps, shares)))),
        ("Memory", f"at most {memory}{f' of {limit}' if limit else ''}{tensors}, on the fullest GPU" if memory else ""),
        ("torch", f"{build}, without support for GPUs" if build.endswith("+cpu") else ""),
        ("Energy", f"{amount(kwh, 'kWh')}, of the GPUs only"),
        ("Cost", f"{amount(cost.held, cost.currency)}, {amount(cost.lost, cost.currency)} of it for lost time"),
        ("With the PUE", amount(cost.kilowatt_hours, "kWh")),
        ("CO2e", amount(None if cost.co2e_grams is None else cost.co2e_grams / 1000, "kg")),
    ]
    return Block("Figures", table=[("", ""), *(row for row in rows if row[1] and not row[1].startswith("-"))])


def _ranks(report: Report) -> Block:
    """Return the processes where they overlap and are no ranks, or differ in what they lost, or in their steps."""
    uses = [(use, use.gpu_hours or GpuHours.of(0.0, {})) for use in report.processes]
    uses = [each for each in uses if each[1].held or report.parallel]
    uses.sort(key=lambda each: -each[1].lost_share)
    steps = [use.step_seconds for use, _ in uses if use.step_seconds]
    slower = bool(steps) and max(steps) > _DIFFERENT_STEP * min(steps)
    differ = len(uses) > 1 and (uses[0][1].lost_share - uses[-1][1].lost_share > _DIFFERENT_SHARE or slower)
    if not differ and not report.parallel:
        return Block()
    rows = [
        (
            use.node,
            f"from {when(use.begin)}" if use.rank is None else str(use.rank),
            hours(of.held, uses[0][1].held) if of.held else "-",
            percent(of.lost_share),
            next(map(cause_phrase, of.lost), "-"),
            duration(use.step_seconds) if use.step_seconds else "-",
        )
        for use, of in uses[:_MOST_RANKS]
    ]
    more = [f"And {len(uses) - _MOST_RANKS} more, which lost less."] * (len(uses) > _MOST_RANKS)
    head = ("node", "rank", "held", "lost", "because it mostly", "step")
    return Block("The processes differ" if differ else "The processes", more, [head, *rows], frozenset({1, 2, 3, 5}))


def as_text(found: Sequence[Block], width: int = 100) -> str:
    """Return blocks for a terminal."""
    parts = []
    for block in found:
        lines = [block.heading] if block.heading else []
        indent = "  " if block.heading and block is not found[0] else ""
        lines += [textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent) for line in block.lines]
        widths = [max(map(len, column)) for column in zip(*block.table, strict=True)]
        texts = [at for at in range(len(widths) - 1) if at not in block.numbers]
        for _ in range(sum(widths[:-1]) + 2 * len(widths) - width if texts else 0):
            widest = max(texts, key=widths.__getitem__)
            widths[widest] = max(_LEAST_TEXT, widths[widest] - 1)
        for row in block.table:
            cells = [
                cell.rjust(size) if at in block.numbers else cut(cell, size).ljust(size)
                for at, (cell, size) in enumerate(zip(row, widths, strict=True))
            ]
            if any(row):
                lines += _row(cells, width)
        parts.append("\n".join(lines))
    return "\n".join(map(printable, "\n\n".join(parts).split("\n"))) + "\n"


def _row(cells: Sequence[str], width: int) -> list[str]:
    """Return a row of a table, whose last cell is wrapped in its column, or stands below where that is too narrow."""
    first, last = "  " + "".join(f"{cell}  " for cell in cells[:-1]), cells[-1].strip()
    if len(first) + len(cells[-1]) <= width:
        return [(first + cells[-1]).rstrip()]
    if len(first) + _LEAST_COLUMN <= width:
        return textwrap.wrap(first + last, width, subsequent_indent=" " * len(first))
    indent = " " * 6
    below = textwrap.wrap(last, width, initial_indent=indent, subsequent_indent=indent)
    return [*textwrap.wrap(first, width, subsequent_indent=indent), *below]


def as_markdown(found: Sequence[Block]) -> str:
    """Return blocks as Markdown."""
    parts = []
    for block in found:
        lines = [f"{'#' if block is found[0] else '##'} {_escaped(block.heading)}\n"] if block.heading else []
        listed_ones = len(block.lines) > 1 and block.heading
        lines += [f"{'- ' if listed_ones else ''}{_escaped(line)}" for line in block.lines]
        for at, row in enumerate(block.table):
            lines += [""] * (at == 0 and bool(block.lines)) + [f"| {' | '.join(map(_escaped, row))} |"]
            if at == 0:
                lines.append(f"|{'|'.join('--:' if n in block.numbers else '---' for n in range(len(row)))}|")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


_MARKS: Mapping[int, str] = {ord(mark): f"\\{mark}" for mark in "\\*_[]<>|#"}


def _escaped(text: str) -> str:
    return text.translate(_MARKS)
