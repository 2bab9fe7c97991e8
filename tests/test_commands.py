"""The commands of README and docs. Those of gpugauge are read by its command line, and run if they end by themselves
and change nothing. Targets of make exist. Other programs are listed with the reason why they are not run here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import Context, Group
from click.testing import CliRunner

from gpugauge.cli.main import main
from tests.drawn import cases

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"dashboards", "metrics", "rules", "scenarios"}
PLACEHOLDERS = {"PID": "1", "NODE": "node7", "FOLDER": "folder", "UUID": "GPU-1", "COMMAND": "python train.py"}
# By program: why no test of this file runs it.
NOT_RUN = {
    "amd-smi": "asks the driver of a machine with a GPU of AMD",
    "amtool": "asks an Alertmanager of the reader, or reads its file; tests/e2e/test_chain.py reads alerts from one",
    "cat": "reads files that not every kernel has",
    "chronyc": "asks the clock of a machine, which a container does not set",
    "curl": "asks a daemon at the default port; tests/web and tests/e2e/test_lifecycle.py send these requests",
    "dmesg": "reads the kernel log of a machine with a GPU",
    "fuser": "lists what has the device files of a GPU open",
    "helm": "needs a cluster; tests/e2e/test_chart.py renders the chart with Helm's own code",
    "jb": "fetches from the forge; tests/artifacts/rules/test_mixin.py renders what it would fetch",
    "journalctl": "needs a booted systemd: qa/deploy/test_systemd.py has one",
    "kubectl": "needs a cluster; tests/e2e/test_install_kubernetes.py runs the blocks of install-kubernetes.md",
    "nvidia-smi": "needs a GPU",
    "promtool": "tests/e2e/test_promtool.py checks the rules with it",
    "py-spy": "attaches to a process of the reader",
    **dict.fromkeys(("scancel", "scontrol", "sinfo", "squeue"), "needs Slurm"),
    "timedatectl": "asks the clock of a machine, which a container does not set",
    "systemctl": "needs a booted systemd: qa/deploy/test_systemd.py has one",
}


def commands(text: str) -> Iterator[str]:
    """Yield the commands of the blocks that show what to type after `$`, without comments."""
    for block in re.findall(r"^ *```console\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^ *\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE):
            yield re.sub(r"\s+#\s.*", "", line.replace("\\\n", " ")).strip()


FOUND = sorted({(path.name, command) for path in DOCUMENTS for command in commands(path.read_text())})


def words(command: str) -> list[str]:
    """Return the words of the first program of a command, with values in place of placeholders."""
    for name, value in PLACEHOLDERS.items():
        command = re.sub(rf"\b{name}\b", value, command)
    found = shlex.split(command)
    ends = [place for place, word in enumerate(found) if word in {">", "|", "&&", "&", "2>&1"}]
    return found[: ends[0]] if ends else found


def test_commands_are_found() -> None:
    assert ("README.md", "make test") in FOUND
    assert len(FOUND) > 40
    assert list(commands("```console\n$ a \\\n    b  # c\nout\n$ d\n```")) == ["a      b", "d"]


OURS = [(name, command) for name, command in FOUND if command.startswith("gpugauge ")]


@cases(("document", "command"), OURS)
def test_command_of_gpugauge(document: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, name, *arguments = words(command)
    assert isinstance(main, Group)
    known = main.get_command(Context(main), name)
    monkeypatch.chdir(tmp_path)

    assert known is not None, f"{document}: there is no gpugauge {name}"
    with known.make_context(name, list(arguments)):  # an unknown option or a wrong value raises UsageError
        pass
    if name in RUN and "FILE" not in command:
        done = CliRunner().invoke(main, [name, *arguments])
        assert done.exit_code == 0, done.output


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for _, command in FOUND if command.startswith("make ") for word in words(command)[1:2]}

    assert named
    assert named <= targets


def test_other_programs_are_listed_with_a_reason() -> None:
    programs = {words(command)[0] for _, command in FOUND} - {"gpugauge", "make"}

    assert programs == set(NOT_RUN)
    named = re.findall(r"tests/\w+(?:/\w+\.py)?", " ".join(NOT_RUN.values()))
    assert [path for path in named if not (ROOT / path).exists()] == []
