import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path.name for path in (ROOT / "docs").glob("install-*.md"))


def headings(text: str) -> set[str]:
    """Return the headings with commands, without the commands that the document marks as not run by the tests."""
    found, heading, paragraph, in_block = set(), "", "", False
    for line in filter(None, text.splitlines()):
        if line.startswith("```"):
            in_block = not in_block
            if line == "```bash" and not paragraph.startswith("Not run by the tests: "):
                found.add(heading)
        elif not in_block:
            heading = line.lstrip("# ") if line.startswith("#") else heading
            paragraph = line
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_run_by_a_test(document: str) -> None:
    """The test of a document names each heading with commands, and runs all commands (tests/e2e/documents.py)."""
    tests = [path.read_text() for folder in ("tests/e2e", "qa/deploy") for path in (ROOT / folder).glob("test_*.py")]
    (source,) = [text for text in tests if f'DOCUMENT = "{document}"' in text]
    named = headings((ROOT / "docs" / document).read_text())

    assert named
    assert [heading for heading in sorted(named) if f'"{heading}"' not in source] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_are_in_blocks_of_bash(document: str) -> None:
    """The tests run blocks of `bash` only; a block that only shows a command is `console`."""
    languages = set(re.findall(r"^```(\w+)$", (ROOT / "docs" / document).read_text(), re.MULTILINE))

    assert languages <= {"bash", "console", "yaml"}


def test_the_python_that_documents_name_is_that_of_the_package() -> None:
    (needed,) = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    texts = [(ROOT / "README.md").read_text(), *((ROOT / "docs" / name).read_text() for name in DOCUMENTS)]
    named = [version for text in texts for version in re.findall(r"Python (3\.\d+)(?= or newer| to 3)", text)]
    old = [part for text in texts for part in text.split("\n\n") if re.search(r"Debian 11|RHEL 9", part)]

    assert set(named) == {needed}
    assert [part for part in old if "3.9" not in part] == []


def test_the_task_prolog_of_slurm_loads_the_hook(tmp_path: Path) -> None:
    """The commands as printed; a copy below the folder of the test stands for the root of the machine."""
    text = (ROOT / "docs/install-systemd.md").read_text()
    (block,) = (b for b in re.findall(r"```console\n(.*?)```", text, re.DOTALL) if "export-hook" in b)
    block = re.sub(r"(?<=[ =])/(?=opt|etc)", f"{tmp_path}/", re.sub("^# ", "", block, flags=re.MULTILINE))
    (tmp_path / "etc/slurm").mkdir(parents=True)
    commands = f'gpugauge() {{ {sys.executable} -m gpugauge "$@"; }}\n{block}'
    line = subprocess.run(["bash", "-euc", commands], capture_output=True, text=True, check=True, timeout=60).stderr

    def loaded(environ: dict[str, str]) -> str:
        program = "import sys; print(sys.modules['gpugauge.hook.arming'].__file__)"
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout

    for before in ({}, {"PYTHONPATH": f"/site:{tmp_path}"}):
        prolog = [str(tmp_path / "etc/slurm/task_prolog.sh")]
        said = subprocess.run(prolog, env=before, capture_output=True, text=True, check=True, timeout=60).stdout
        by_shell = ["sh", "-c", f"{line}\necho export PYTHONPATH=$PYTHONPATH"]
        shell = subprocess.run(by_shell, env=before, capture_output=True, text=True, check=True, timeout=60).stdout
        assert said == shell
        # Slurm sets what a line `export NAME=VALUE` has, without a shell.
        name, value = said.removeprefix("export ").rstrip("\n").split("=", 1)
        assert (name, Path(value.split(":")[0], "sitecustomize.py").is_file()) == ("PYTHONPATH", True)
        assert value.split(":")[1:] == before.get("PYTHONPATH", "").split(":")[: 2 if before else 0]
        assert loaded({name: value}) == f"{tmp_path}/opt/gpugauge-hook/gpugauge/hook/arming.py\n"
