"""Figures in documents, each from a committed result: qa/bench/results/NAME.json, which a bench writes with --write.

In a document, `<!-- figures: NAME -->` and `<!-- end of figures -->` enclose the tables of a result in their short form
(qa.bench.short), `NAME.TABLE` one of them, and `<!-- figure: NAME.KEY -->` precedes one figure.
`python -m qa.bench.figures` writes all of them again.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qa.bench.report import Report, machine, reported
from qa.bench.short import short

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
_END = "<!-- end of figures -->"
_PART = re.compile(rf"(?P<begin><!-- figures: (?P<name>[\w-]+)(?:\.(?P<table>[\w-]+))? -->).*?{_END}", re.DOTALL)
_NUMBER = r"[-+]?\d(?:[\d,.]*\d)?"
_FIGURE = re.compile(rf"(?P<begin><!-- figure: (?P<name>[\w-]+)\.(?P<key>[\w-]+) -->){_NUMBER}")

Result = dict[str, Any]


class FigureError(Exception):
    """A document refers to a result that is missing; the message names the marker and the command."""


def documents() -> Iterator[Path]:
    """Return the documents that may contain figures."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def read(name: str) -> Result:
    """Return a committed result. Raises FigureError."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise FigureError(f"there is no qa/bench/results/{name}.json: run the bench {name} with --write")
    found: Result = json.loads(path.read_text())
    return found


def renewed(text: str, results: Callable[[str], Result] = read) -> str:
    """Return a document with its tables and figures as in the results. Raises FigureError."""

    def part(match: re.Match[str]) -> str:
        return f"{match['begin']}\n\n{_markdown(results(match['name']), match['name'], match['table'])}\n\n{_END}"

    def figure(match: re.Match[str]) -> str:
        figures = results(match["name"])["figures"]
        if match["key"] not in figures:
            raise FigureError(f"{match['begin']}: the result has only the figures {', '.join(sorted(figures))}")
        return f"{match['begin']}{figures[match['key']]}"

    return _FIGURE.sub(figure, _PART.sub(part, text))


def without(text: str) -> str:
    """Return a document without its tables and figures of results."""
    return _FIGURE.sub("", _PART.sub("", text))


def keep(name: str, reports: Sequence[Report], facts: Mapping[str, Any] | None = None) -> None:
    """Write the result of a bench, and its figures into the documents. `facts` are those of the run."""
    figures: dict[str, str] = {}
    for made in reports:
        figures |= made.figures
    tables = [{"name": r.name, "title": r.title, "rows": list(r.rows), "notes": list(r.notes)} for r in reports]
    result = {"command": reports[0].command, **machine(), **(facts or {}), "tables": tables, "figures": figures}
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    write()


def write() -> None:
    """Write all figures into the documents. Raises FigureError."""
    for path in documents():
        text = path.read_text()
        try:
            new = renewed(text)
        except FigureError as error:
            raise FigureError(f"{path.relative_to(ROOT)}: {error}") from None
        if new != text:
            path.write_text(new)
            print(path.relative_to(ROOT))


def run(name: str, main: Callable[[], None]) -> None:
    """Run a bench that reports its tables; with --write, keep its result under this name."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--write", action="store_true")
    options, _ = parser.parse_known_args()
    reported.clear()
    main()
    if options.write:
        keep(name, reported)


def _markdown(result: Result, name: str, table: str | None) -> str:
    reports = [
        Report(one["title"], one["rows"], result["command"], one["notes"], one["name"]) for one in result["tables"]
    ]
    reports = short(name, reports)
    chosen = [made for made in reports if table in {None, made.name}]
    if not chosen:
        raise FigureError(f"{name}.{table}: the result has only the tables {', '.join(r.name for r in reports)}")
    if table is not None:
        return chosen[0].markdown(heading=False)
    return "\n\n".join([_sentence(result), *(made.markdown() for made in chosen)])


def _sentence(result: Result) -> str:
    """Return the command of a result and the machine on which it ran."""
    where = f"{result['processor']}, {result['cores']} cores, Python {result['python']}"
    load = f"load average {result['load average before']}, stolen {result['stolen by other machines']}"
    return f"`{result['command']}`, {result['date']}, no GPU: {where}, {load}."


if __name__ == "__main__":
    write()
