"""The workflows of .github: each step runs a make target or a script of the repository that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What a step runs besides our own: it comes with the runner, or an earlier step installs it.
PROGRAMS = {"apt-get", "cp", "echo", "gh", "mkdir", "podman", "tar"}

# The command of a line: after && and |, and after what passes it on.
COMMAND = re.compile(r"(?:^|&& |\| )(?:sudo env \"\S+\" )?(\S+)", re.MULTILINE)


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each step with the name of its workflow and job."""
    for workflow in WORKFLOWS:
        for name, job in yaml.safe_load(workflow.read_text())["jobs"].items():
            for step in job.get("steps", ()):
                yield f"{workflow.stem} {name}", step


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


RUNS = [(place, step["run"]) for place, step in steps() if "run" in step]


@pytest.mark.parametrize(("place", "text"), RUNS)
def test_each_step_runs_what_exists(place: str, text: str) -> None:
    unknown = []
    for command in COMMAND.findall(text):
        if command == "python3":
            unknown += [file for file in re.findall(r"python3 (\S+)", text) if not (ROOT / file).is_file()]
        elif command.startswith("."):
            unknown += [command] if not (ROOT / command).stat().st_mode & 0o100 else []
        elif command != "make" and command not in PROGRAMS:
            unknown.append(command)
    for words in re.findall(r"(?m)(?:^|&& |\()make ((?:[a-z-]+ ?)+)", text):
        unknown += [target for target in words.split() if target not in targets()]

    assert unknown == [], place


def test_the_steps_are_found() -> None:
    commands = [command for _, text in RUNS for command in COMMAND.findall(text)]

    assert len(RUNS) >= 15
    assert {"make", "python3", ".ci/run", ".ci/deploy", ".ci/packages", ".ci/cluster"} <= set(commands)
    assert {"dist", "release-image", "release-chart"} <= targets()


def test_every_supported_python_is_tested_and_named() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    (oldest,) = re.findall(r'^requires-python = ">=(\S+)"', project, re.MULTILINE)
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())

    assert ci["jobs"]["python"]["strategy"]["matrix"]["python"] == named
    assert named[0] == oldest


def test_no_action_gets_more_rights_than_it_needs() -> None:
    for workflow in WORKFLOWS:
        document = yaml.safe_load(workflow.read_text())
        assert document["permissions"] == {"contents": "read"}, workflow.name
    writes = {
        (name, scope)
        for name, job in yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"].items()
        for scope, right in job.get("permissions", {}).items()
        if right == "write"
    }

    assert writes == {
        ("packages", "id-token"),
        ("packages", "attestations"),
        ("debian", "id-token"),
        ("debian", "attestations"),
        ("image", "packages"),
        ("image", "id-token"),
        ("pypi", "id-token"),
        ("release", "contents"),
    }
