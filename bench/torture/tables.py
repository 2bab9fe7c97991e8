"""The tables of docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.document import DOCS, put, split
from bench.report import Report, sentence
from bench.torture.fault import Outcome

_DOCUMENT = DOCS / "reliability.md"
_MARKERS = "<!-- torture: python -m bench.torture --write -->", "<!-- end of torture -->"


def fault_table(outcomes: Sequence[Outcome], floor: float) -> Report:
    """Return a row for each fault."""
    rows = [
        {
            "fault": outcome.fault.name,
            "how": outcome.fault.how,
            "what says so": outcome.fault.reported_by or "nothing has to",
            "scrapes": outcome.scrapes,
            "lost": outcome.lost,
            "slow": _slow(outcome),
            "worst ms": round(outcome.worst_ms),
            "wrong": outcome.wrong,
            "reported after s": ""
            if outcome.reported is None or not outcome.fault.reported_by
            else round(outcome.reported, 1),
            "whole after s": "never" if outcome.recovered is None else round(outcome.recovered, 1),
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
    delayed = f" ({outcome.fault.delayed} held up by the fault itself)" if outcome.fault.delayed else ""
    return f"{outcome.slow}{delayed if outcome.slow else ''}"


def crowd_tables(slow: Sequence[dict[str, Any]], many: Sequence[dict[str, Any]]) -> list[Report]:
    """Return the tables of the crowds."""
    return [
        Report("2,000 slow connections, while Prometheus scrapes each second", slow, "python -m bench.torture"),
        Report("Scrapers at once, each every 0.2 s", many, "python -m bench.torture"),
    ]


def put_tables(faults: Report, crowds: Sequence[Report], conditions: str) -> None:
    """Write the tables into the document. `conditions` is a sentence about the run."""
    put(
        _DOCUMENT,
        *_MARKERS,
        "\n\n".join([f"{sentence()} {conditions}", *(report.markdown() for report in (faults, *crowds))]),
    )


def put_rows(faults: Report) -> None:
    """Replace single rows of the table in the document."""
    _, written, _ = split(_DOCUMENT.read_text(), *_MARKERS)
    new = {line.split(" | ")[0]: line for line in faults.markdown().splitlines() if line.startswith("| ")}
    lines = [new.get(line.split(" | ")[0], line) for line in written.strip("\n").splitlines()]
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
    put(_DOCUMENT, *_MARKERS, text)
