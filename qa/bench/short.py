"""The form of results in the documents: the rows and columns by which a claim is judged, sums of the others, and what
went wrong. All rows that were measured are in qa/bench/results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qa.bench.report import Report, Rows

Row = Mapping[str, Any]


def short(name: str, reports: Sequence[Report]) -> list[Report]:
    """Return the tables of a result as the documents have them."""
    return _FORMS[name](reports) if name in _FORMS else list(reports)


def _part(made: Report, columns: Iterable[str], keep: Callable[[Row], bool] = bool, notes: int | None = None) -> Report:
    """Return a table with these columns, the rows that `keep` accepts, and the first notes."""
    chosen = list(columns)
    rows = [{column: row[column] for column in chosen} for row in made.rows if keep(row)]
    return replace(made, rows=rows, notes=made.notes[:notes])


def _without(made: Report, *names: str, notes: int | None = None) -> Report:
    return _part(made, [column for column in made.rows[0] if column not in names], notes=notes)


def _number(cell: object) -> float:
    """Return the number with which a cell begins, 0 without one, infinity for never."""
    first = str(cell).partition(" ")[0].rstrip("%")
    return {"": 0.0, "-": 0.0, "never": math.inf}[first] if first in {"", "-", "never"} else float(first)


def _most(rows: Rows, column: str) -> float:
    return max(_number(row[column]) for row in rows)


def _sum(rows: Rows, column: str) -> int:
    return round(sum(_number(row[column]) for row in rows))


def _groups(rows: Rows, column: str) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


def _accuracy(reports: Sequence[Report]) -> list[Report]:
    """Return a row for each scrape interval, with the largest errors of all loads."""
    regular, scrapers = reports
    errors = ("gpugauge, typical", "gpugauge, worst", "gauge, typical", "gauge, worst")
    rows = [
        {"scrape s": scrape, "window s": loads[0]["window s"]} | {name: f"{_most(loads, name):.2f}" for name in errors}
        for scrape, loads in _groups(regular.rows, "scrape s").items()
    ]
    return [replace(regular, rows=rows), _without(scrapers, "scrapes that wait %", "readings a minute")]


def _scrape(reports: Sequence[Report]) -> list[Report]:
    columns = ("cores", "served", "p50 ms", "p99 ms", "p99.9 ms", "p99 / the second's")
    return [_part(reports[0], columns, lambda row: row["connection"] == "kept")]


def _cost(reports: Sequence[Report]) -> list[Report]:
    return [
        replace(_part(made, list(made.rows[0]), lambda row: row["part"].startswith("all")), notes=made.notes[-1:])
        for made in reports
    ]


def _growth(reports: Sequence[Report]) -> list[Report]:
    """Return a row for each number of devices."""
    rows = [
        {"devices": devices}
        | {f"CPU s/min, {row['processes']} processes": row["CPU s/min"] for row in found}
        | {f"{name}, {found[-1]['processes']} processes": found[-1][name] for name in ("series", "p99 ms", "PSS MB")}
        for devices, found in _groups(reports[0].rows, "devices").items()
    ]
    return [replace(reports[0], rows=rows, notes=())]


def _conditions(reports: Sequence[Report]) -> list[Report]:
    """Return a row for each number of faults, and one for each condition."""
    by_faults = [
        {"faults": made.name.rpartition("-")[2]} | _statements(made.rows, ("right", "exact", "any cause"))
        for made in reports
    ]
    every = [row for made in reports for row in made.rows]
    by_condition = [
        {"conditions": name} | _statements(rows, ("right", "any cause"))
        for name, rows in _groups(every, "conditions").items()
    ]
    title = "Statements of the verdict"
    return [
        Report(title, by_faults, reports[0].command, name="faults"),
        Report(title, by_condition, reports[0].command, name="conditions"),
    ]


def _statements(rows: Rows, shares: Iterable[str]) -> dict[str, str]:
    """Return the sums of rows. A share of at most some hundred runs, to a tenth of a percent, is of one number only."""

    def number(row: Row, share: str, whole: str) -> int:
        return round(_number(row[share]) * _number(row[whole]) / 100)

    named, caused, healthy = (_sum(rows, name) for name in ("statements", "with a cause", "healthy"))
    found = {name: sum(number(row, name, "statements") for row in rows) for name in shares}
    silent = sum(number(row, "silent", "with a cause") for row in rows)
    wrong = sum(number(row, "wrongly named", "healthy") for row in rows)
    return {
        "statements": str(named),
        **{name: f"{value / named:.1%}" if named else "-" for name, value in found.items()},
        "silent": f"{silent}/{caused}",
        "wrongly named": f"{wrong}/{healthy}",
    }


def _torture(reports: Sequence[Report]) -> list[Report]:
    """Return a row for each kind of fault, and the faults with a lost, slow or wrong scrape."""
    faults, *others = reports
    kinds = _groups(faults.rows, "kind")
    most, after = "worst ms", ("reported after s", "whole after s")
    rows = [
        {"kind": kind, "faults": len(found)}
        | {name: _sum(found, name) for name in ("scrapes", "lost", "slow", "wrong")}
        | {name: f"{_most(found, name):g}" for name in (most, *after)}
        for kind, found in kinds.items()
    ]
    missed = [row for row in faults.rows if any(_number(row[name]) for name in ("lost", "slow", "wrong"))]
    listed = "; ".join(
        f"{row['fault']} (lost {row['lost']}, slow {row['slow']}, wrong {row['wrong']}, {row[most]} ms)"
        for row in missed
    )
    notes = (faults.notes[0], *faults.notes[2:], f"Not all as usual: {listed or 'none'}.")
    columns = {
        "All attacks": (),
        "2,000 slow": ("seconds", "direct: scrapes", "lost", "p50 ms", "open descriptors, most"),
        "Scrapers": ("seconds", "p50 ms"),
    }
    return [
        replace(faults, rows=rows, notes=notes),
        *(
            _without(made, *names)
            for made in others
            for begin, names in columns.items()
            if made.title.startswith(begin)
        ),
    ]


def _only(*columns: str, keep: Callable[[Row], bool] = bool) -> Callable[[Sequence[Report]], list[Report]]:
    """Return a form: these columns of the first table."""
    return lambda reports: [_part(reports[0], columns, keep)]


_FORMS: dict[str, Callable[[Sequence[Report]], list[Report]]] = {
    "accuracy": _accuracy,
    "conditions": _conditions,
    "cost": _cost,
    "fuzz": _only("what is read", "inputs", "taken", "crashes"),
    "gain": _only(
        "cause", "gains published", "median error", "95th percentile", "truth within the bounds", "without effect"
    ),
    "growth": _growth,
    "hook": _only("µs a step", "without", "added", "spread", "both, less nothing"),
    "gpu": lambda reports: [_without(reports[0], "lost to it", "busy by the counter"), *reports[1:]],
    "mutants": lambda reports: [_without(reports[0], "equivalent", "by time limit", notes=0)],
    "scrape": _scrape,
    "torture": _torture,
}
