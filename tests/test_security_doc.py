"""docs/security.md: each promise names the tests or torture rows that show it, and its numbers are the code's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from gpugauge.sessions.budget import Budget
from gpugauge.sessions.receiver.protocol import Options
from gpugauge.workload import environ, processfiles
from tests.drawn import cases

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/security.md").read_text()
_TEST = re.compile(r"`((?:tests|qa)/[\w/]+\.py)(?:::(\w+))?`")
_TORTURE = re.compile(r"torture `([^`]+)`")


def promises(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is prevented and what shows it, of each row of a table that has these columns."""
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.startswith("|") else []
        if not cells or not header:
            header = cells
        elif "cannot" in header and not line.startswith("|--"):
            row = dict(zip(header, cells, strict=True))
            yield row["cannot"], row["shown by"]


def missing(text: str) -> list[str]:
    """Return the tests and rows that a text names and that do not exist."""
    tests = [f"{path}::{name}" for path, name in _TEST.findall(text) if not _exists(ROOT / path, name)]
    return tests + [row for row in _TORTURE.findall(text) if row not in _torture()]


def _exists(path: Path, name: str) -> bool:
    if not path.is_file():
        return False
    functions = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    return not name or name in functions


def _torture() -> set[str]:
    tables = json.loads((ROOT / "qa/bench/results/torture.json").read_text())["tables"]
    return {row["fault"] for table in tables for row in table["rows"] if "fault" in row}


def test_each_promise_names_what_shows_it() -> None:
    found = list(promises(TEXT))
    assert len(found) > 30
    assert [what for what, shown in found if not _TEST.search(shown) and not _TORTURE.search(shown)] == []


def test_what_is_named_exists() -> None:
    assert missing(TEXT) == []


@cases("named", ["`tests/no.py`", "`tests/test_security_doc.py::test_no_such`", "torture `hook: no such row`"])
def test_what_does_not_exist_is_noticed(named: str) -> None:
    assert len(missing(named)) == 1


def test_a_promise_without_a_test_is_noticed() -> None:
    rows = "| who | cannot | shown by |\n|---|---|---|\n| a user | fly | - |\n"
    assert list(promises(rows)) == [("fly", "-")]


def test_the_limits_are_those_of_the_code() -> None:
    options = Options()
    limits = f"{options.connections_by_user:,} connections, or {options.connections_by_cgroup:,} in a cgroup"
    assert limits in TEXT
    assert f"more than {options.connects:.0f} a second" in TEXT
    assert f"refuses these for {options.ban_seconds / 60:.0f} minutes" in TEXT
    series, by_owner = Budget.__init__.__defaults__ or ()
    assert f"at most {by_owner:,} series, all together {series:,}" in TEXT


def test_every_variable_that_is_read_is_listed() -> None:
    in_proc = set(re.findall(r'b"([A-Z_]+)="', Path(processfiles.__file__).read_text()))
    read = {name.decode() for name in environ.VARIABLES} | in_proc
    _, _, section = TEXT.partition("it reads only these variables")
    listed = set(re.findall(r"`([A-Z][A-Za-z0-9_*]+)`", section.partition("No message contains")[0]))

    assert len(in_proc) == 4
    assert listed == read | {"VC_*_HOSTS"}
