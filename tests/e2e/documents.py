"""The commands of a document, which tests execute as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.needs import give_up

ROOT = Path(__file__).parent.parent.parent


def blocks(document: str, heading: str, language: str = "bash") -> list[str]:
    """Return the code blocks of one language under a heading of docs/`document` and its subheadings."""
    text = (ROOT / "docs" / document).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{document} has no heading {heading!r}"
    result = re.findall(rf"^```{language}\n(.*?)^```$", found[2], re.DOTALL | re.MULTILINE)
    assert result, f"{document}, {heading}: no block of {language}"
    return result


def shell(commands: str, folder: Path, environment: Mapping[str, str], timeout: float = 250) -> str:
    """Run commands of a document in `folder`, and return their output. Fails if a command fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    return done.stdout


def fresh_checkout(folder: Path) -> Path:
    """Return a copy of the working tree, with its history and without the files that git ignores."""
    if not (ROOT / ".git").exists():
        give_up("this is not a git checkout")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    copy = folder / "checkout"
    git("clone", "--quiet", "--no-checkout", str(ROOT), str(copy))
    git("-C", str(copy), "reset", "--quiet")
    for name in git("-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):  # and not removed from the working tree
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy
