"""Manual pages and shell completions of the packages, compared with what the commands say of themselves."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpugauge.cli.main import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "package" / "documents.py"
MODULE = runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True)
    return folder


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w.-]*[a-z]", text))


def test_each_command_has_a_page_with_all_its_options(tree: Path) -> None:
    runner = CliRunner()
    listed = re.findall(r"^  (\S+)  ", runner.invoke(main, ["--help"]).output.split("Commands:")[1], re.MULTILINE)
    files = tree.glob("usr/share/man/man1/*.1")
    pages = {file.stem: re.sub(r"\\f[BR]", " ", file.read_text()).replace("\\-", "-") for file in files}

    assert {"gpugauge", *(f"gpugauge-{name}" for name in listed)} <= set(pages)
    for name in listed:
        told = runner.invoke(main, [name, "--help"], terminal_width=1000, max_content_width=1000).output
        assert options(told) <= options(pages[f"gpugauge-{name}"]), name
        assert f" gpugauge-{name} (1)" in pages["gpugauge"]


def test_completions_are_scripts_of_their_shells(tree: Path) -> None:
    files = {file.relative_to(tree / "usr/share").parts[0]: file for file in tree.rglob("*") if "gpugauge" in file.name}
    assert {"bash-completion", "fish", "zsh", "man"} == set(files)
    subprocess.run(["bash", "-n", str(files["bash-completion"])], check=True)
    assert files["zsh"].read_text().startswith("#compdef gpugauge\n")


@given(st.text(st.sampled_from("ab.'\\-\n "), max_size=20))
def test_no_text_becomes_a_request_of_troff(text: str) -> None:
    written = MODULE["roff"](text)

    assert not any(line.startswith((".", "'")) for line in written.splitlines())
    assert written.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\") == "\n".join(text.splitlines())
