"""docs/proof/security.md: qa/promises.yaml names what shows each promise, and the numbers are the code's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from gpugauge.sessions.budget import Budget
from gpugauge.sessions.receiver.protocol import Options
from gpugauge.workload import environ, processfiles
from tests.drawn import cases

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/security.md").read_text()
PROOF = (ROOT / "docs/proof/security.md").read_text()
WORDS = " ".join(f"{PROOF} {TEXT}".split())
SHOWN: dict[str, list[str]] = {
    each["cannot"]: each["shown by"] for each in yaml.safe_load((ROOT / "qa/promises.yaml").read_text())
}


def promises(text: str) -> list[str]:
    """Return the items of the lists about what is prevented."""
    _, _, section = text.partition("\n## What is prevented\n")
    found = re.findall(r"^- (.*(?:\n  .*)*)", section.partition("\n## ")[0], re.MULTILINE)
    return [" ".join(item.split()) for item in found]


def missing(names: Iterable[str]) -> list[str]:
    """Return the tests and rows of the table of torture that do not exist."""
    return [name for name in names if not _is_there(name)]


def _is_there(name: str) -> bool:
    path, _, test = name.partition("::")
    return name.removeprefix("torture ") in _torture() if name.startswith("torture ") else _exists(ROOT / path, test)


def _exists(path: Path, name: str) -> bool:
    if not path.is_file():
        return False
    functions = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    return not name or name in functions


def _torture() -> set[str]:
    tables = json.loads((ROOT / "qa/bench/results/torture.json").read_text())["tables"]
    return {row["fault"] for table in tables for row in table["rows"] if "fault" in row}


def test_each_promise_has_what_shows_it() -> None:
    found = promises(PROOF)
    assert len(found) > 30
    assert found == [*SHOWN]
    assert all(SHOWN.values())


def test_what_is_named_exists() -> None:
    assert missing(name for names in SHOWN.values() for name in names) == []


@cases("named", ["tests/no.py", "tests/test_security_doc.py::test_no_such", "torture hook: no such row"])
def test_what_does_not_exist_is_noticed(named: str) -> None:
    assert missing([named]) == [named]


def test_the_limits_are_those_of_the_code() -> None:
    options = Options()
    limits = f"{options.connections_by_user:,} connections, or {options.connections_by_cgroup:,} in a cgroup"
    assert limits in WORDS
    assert f"more than {options.connects:.0f} a second" in WORDS
    assert f"refuses these for {options.ban_seconds / 60:.0f} minutes" in WORDS
    series, by_owner = Budget.__init__.__defaults__ or ()
    assert f"at most {by_owner:,} series, all together {series:,}" in WORDS


def test_every_variable_that_is_read_is_listed() -> None:
    in_proc = set(re.findall(r'b"([A-Z_]+)="', Path(processfiles.__file__).read_text()))
    read = {name.decode() for name in environ.VARIABLES} | in_proc
    _, _, section = WORDS.partition("it reads only these variables")
    listed = set(re.findall(r"`([A-Z][A-Za-z0-9_*]+)`", section.partition("With `verdict.nccl_inspector_dir`")[0]))

    assert len(in_proc) == 4
    assert listed == read | {"VC_*_HOSTS", "NCCL_RAS_ADDR"}
