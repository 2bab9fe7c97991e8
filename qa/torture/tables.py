"""The tables of docs/proof/reliability.md."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qa.bench import figures
from qa.bench.report import Report, machine
from qa.torture.fault import Outcome

_MEASURED = "Measured on"  # begins the note of a table that was made on another machine
_TOGETHER = "All attacks of other users at once"


def fault_table(outcomes: Sequence[Outcome], floor: float) -> Report:
    """Return a row for each fault."""
    rows = [
        {
            "fault": outcome.fault.name,
            "kind": outcome.fault.kind,
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
            "on": time.strftime("%Y-%m-%d"),
        }
        for outcome in outcomes
    ]
    slow = (
        f"Slow is a scrape of more than 5 times the median of its row, and of more than {1000 * floor:g} ms. The first "
        "one of a row is left out, because the daemon still starts and verifies the login."
    )
    return Report("Faults", rows, "python -m qa.torture", (_totals(rows), slow))


def _totals(rows: Sequence[Mapping[str, object]]) -> str:
    sums = {name: sum(int(str(row[name]).split()[0]) for row in rows) for name in ("scrapes", "lost", "slow", "wrong")}
    return (
        f"{len(rows)} rows, {sums['scrapes']} scrapes: {sums['lost']} lost, {sums['slow']} slow, {sums['wrong']} pages "
        "with a wrong value."
    )


def _slow(outcome: Outcome) -> str:
    held_up = min(outcome.fault.delayed, outcome.slow)
    delayed = f" ({held_up} held up by the fault itself)" if held_up else ""
    return f"{outcome.slow}{delayed if outcome.slow else ''}"


def crowd_tables(slow: Sequence[dict[str, Any]], many: Sequence[dict[str, Any]]) -> list[Report]:
    """Return the tables of the crowds."""
    return [
        Report("2,000 slow connections, while Prometheus scrapes each second", slow, "python -m qa.torture"),
        Report("Scrapers at once, each every 0.2 s", many, "python -m qa.torture"),
    ]


def together_table(row: dict[str, Any]) -> Report:
    """Return the table of all attacks at once: one line for each figure."""
    rows = [{"what": what, "result": result} for what, result in row.items()]
    return Report(_TOGETHER, rows, "python -m qa.torture")


def keep_rows(faults: Report) -> None:
    """Replace single rows of the committed result, and add new ones."""
    known, (old, *others) = _known()
    new = {row["fault"]: row for row in faults.rows}
    names = {row["fault"] for row in old.rows}
    rows = [new.get(row["fault"], {"on": known["date"], **row}) for row in old.rows]
    rows += [row for name, row in new.items() if name not in names]
    _keep(known, [replace(old, rows=rows, notes=(_totals(rows), *faults.notes[1:])), *others])


def keep_table(made: Report) -> None:
    """Replace or add a table after the first one of the committed result."""
    known, (faults, *others) = _known()
    _keep(known, [faults, made, *(other for other in others if other.title != made.title)])


def _known() -> tuple[figures.Result, list[Report]]:
    """Return the committed result and its tables, which name their machine if it is not this one."""
    known = figures.read("torture")
    elsewhere = known["processor"] != machine()["processor"]
    where = f"{_MEASURED} {known['date']} on {known['processor']}, {known['cores']} cores."
    tables = []
    for one in known["tables"]:
        named = any(note.startswith(_MEASURED) for note in one["notes"])
        notes = (*one["notes"], where) if elsewhere and not named else one["notes"]
        tables.append(Report(one["title"], one["rows"], known["command"], tuple(notes)))
    return known, tables


def _keep(known: figures.Result, tables: Sequence[Report]) -> None:
    figures.keep("torture", tables, {key: known[key] for key in ("minutes", "faults at once")})
