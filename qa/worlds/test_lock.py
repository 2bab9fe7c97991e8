"""The lock files of deploy/requirements contain what pyproject.toml asks for, each package with hashes."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.drawn import cases

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "requirements"


def asked(*extras: str) -> list[str]:
    """Return the dependencies of the project with these extras, as pyproject.toml has them."""
    found = [Requirement(line) for line in importlib.metadata.requires("gpugauge") or ()]
    chosen = [each for each in found if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)]
    return [f"{each.name}{each.specifier}" for each in chosen]


ASKED = {
    "image": asked("kubernetes"),
    "build": re.findall(r'^requires = \["(.+)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE),
    "dev": asked("dev", "top", "docs"),
    "e2e": asked("dev", "top", "docs", "e2e"),
}


def entries(name: str) -> list[tuple[Requirement, int]]:
    """Return each entry of a lock file with the number of its hashes."""
    text = re.sub(r"^#.*\n", "", (LOCKS / f"{name}.txt").read_text(), flags=re.MULTILINE)
    found = []
    for entry in re.split(r"\n(?=\S)", text.strip()):
        first, *hashes = entry.split("\\\n")
        found.append((Requirement(first.strip()), sum("--hash=sha256:" in each for each in hashes)))
    return found


@cases("name", ASKED)
def test_each_dependency_is_locked_within_its_range(name: str) -> None:
    locked: dict[str, list[Requirement]] = {}
    for entry, _ in entries(name):
        locked.setdefault(canonicalize_name(entry.name), []).append(entry)
    wrong = []
    assert ASKED[name]
    for line in ASKED[name]:
        need = Requirement(line)
        versions = [str(entry.specifier).removeprefix("==") for entry in locked.get(canonicalize_name(need.name), [])]
        if not versions or not all(need.specifier.contains(version) for version in versions):
            wrong.append((line, versions))

    assert wrong == [], "run `make lock`"


@cases("name", ASKED)
def test_each_entry_is_one_version_with_hashes(name: str) -> None:
    assert [str(entry) for entry, hashes in entries(name) if not hashes] == []
    assert [str(entry) for entry, _ in entries(name) if not re.fullmatch(r"==[^,*]+", str(entry.specifier))] == []
    assert "torch" not in {entry.name for entry, _ in entries(name)}


def test_ci_and_image_install_by_hash() -> None:
    dockerfile, ci = (ROOT / "Dockerfile").read_text(), (ROOT / ".ci" / "run").read_text()

    assert dockerfile.count("--require-hashes") == 2
    for install in re.findall(r"pip install (?:(?!&&).)*", dockerfile.replace("\\\n", " ")):
        assert "--require-hashes" in install or "--no-index" in install
    assert "--require-hashes" in ci
