"""The tables of docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import Report, sentence
from bench.torture.fault import Outcome

_DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN, _END = "<!-- torture: python -m bench.torture --write -->", "<!-- end of torture -->"


def fault_table(outcomes: Sequence[Outcome], floor: float) -> Report:
    """Return a row for each fault."""
    rows = [
        {
            "fault": outcome.fault.name,
            "how": outcome.fault.how,
            "what says so": outcome.fault.says or "nothing has to",
            "scrapes": outcome.scrapes,
            "lost": outcome.lost,
            "slow": _slow(outcome),
            "worst ms": round(outcome.worst_ms),
            "wrong": outcome.wrong,
            "told after s": "" if outcome.told is None or not outcome.fault.says else round(outcome.told, 1),
            "whole after s": "never" if outcome.back is None else round(outcome.back, 1),
        }
        for outcome in outcomes
    ]
    slow = f"Slow is a scrape of more than 5 times the median of its row, and of more than {1000 * floor:g} ms."
    return Report("Faults", rows, "python -m bench.torture", (_totals(rows), slow))


def _totals(rows: Sequence[Mapping[str, object]]) -> str:
    sums = {name: sum(int(str(row[name]).split()[0]) for row in rows) for name in ("scrapes", "lost", "slow", "wrong")}
    return (
        f"{len(rows)} rows, {sums['scrapes']} scrapes: {sums['lost']} lost, {sums['slow']} slow, {sums['wrong']} pages "
        "with a wrong value."
    )


def _slow(outcome: Outcome) -> str:
    held_up = f" ({outcome.fault.delayed} held up by the fault itself)" if outcome.fault.delayed else ""
    return f"{outcome.slow}{held_up if outcome.slow else ''}"


def crowd_tables(slow: Sequence[dict[str, Any]], many: Sequence[dict[str, Any]]) -> list[Report]:
    """Return the tables of the crowds."""
    return [
        Report("2,000 slow connections, while Prometheus scrapes each second", slow, "python -m bench.torture"),
        Report("Scrapers at once, each every 0.2 s", many, "python -m bench.torture"),
    ]


def put(faults: Report, crowds: Sequence[Report], ran: str) -> None:
    """Write the tables into the document."""
    made = "\n\n".join([f"{sentence()} {ran}", *(report.markdown() for report in (faults, *crowds))])
    before, _, after = _parts()
    _DOCUMENT.write_text(f"{before}{_BEGIN}\n\n{made}\n\n{_END}{after}")


def put_rows(faults: Report) -> None:
    """Replace single rows of the table in the document by newer ones."""
    before, written, after = _parts()
    new = {line.split(" | ")[0]: line for line in faults.markdown().splitlines() if line.startswith("| ")}
    lines = [new.get(line.split(" | ")[0], line) for line in written.splitlines()]
    head, rows = "", []
    for line in lines:
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| fault |"):
            head = line
        elif head and line.startswith("| "):
            rows.append(dict(zip((name.strip("| ") for name in head.split(" | ")), cells, strict=True)))
        elif head and not line:  # the end of the table
            break
    text = re.sub(r"^\d+ rows, .*$", _totals(rows), "\n".join(lines), count=1, flags=re.MULTILINE)
    _DOCUMENT.write_text(f"{before}{_BEGIN}{text}\n{_END}{after}")


def _parts() -> tuple[str, str, str]:
    """Return what stands before the tables, the tables, and what comes after them."""
    before, begin, rest = _DOCUMENT.read_text().partition(_BEGIN)
    written, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{_DOCUMENT} lacks the lines {_BEGIN} and {_END}: put them where the tables belong")
    return before, written, after
