"""Notes of a release, from changelogs that are drawn and from our own."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpugauge import __version__

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "release" / "notes.py"
MODULE = runpy.run_path(str(SCRIPT))

sections = st.lists(
    st.tuples(
        st.from_regex(r"\d{1,2}\.\d{1,2}\.\d{1,2}", fullmatch=True),
        st.lists(st.sampled_from(["- [FEATURE] web: a ## 1.2.3", "### GPUs", "  more", "", "- 0.1.0"]), max_size=6),
    ),
    max_size=6,
    unique_by=lambda section: section[0],
)


def run(changelog: Path, version: str) -> tuple[int, str, str]:
    command = [sys.executable, "-I", str(SCRIPT), version, f"--changelog={changelog}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@given(drawn=sections)
def test_each_version_gets_its_own_section(drawn: list[tuple[str, list[str]]]) -> None:
    text = "# Changelog\n\n## Unreleased\n\n- nothing\n" + "".join(
        f"\n## {version} / 2026-01-02\n" + "".join(f"{line}\n" for line in lines) for version, lines in drawn
    )
    for version, lines in drawn:
        expected = "\n".join(lines).strip()
        if expected:
            assert MODULE["notes"](text, version) == expected
        else:
            with pytest.raises(MODULE["NotesError"], match="is empty"):
                MODULE["notes"](text, version)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no section 1.2.3"),
        ("## Unreleased\n- a\n", "there is no section 1.2.3, the nearest is Unreleased"),
        ("## 1.2.4 / 2026-01-02\n- a\n", "there is no section 1.2.3, the nearest is 1.2.4"),
        ("## 1.2.3\n- a\n", "section 1.2.3 has no date: expected `## 1.2.3 / YYYY-MM-DD`"),
        ("## 1.2.3 / soon\n- a\n", "section 1.2.3 has no date: expected `## 1.2.3 / YYYY-MM-DD`"),
        ("## 1.2.3 / 2026-01-02\n\n## 1.2.2 / 2026-01-01\n- a\n", "section 1.2.3 is empty"),
        ("## 1.2.3 / 2026-01-02\n- a\n## 1.2.3 / 2026-01-01\n- b\n", "there are 2 sections 1.2.3"),
    ],
)
def test_without_notes_there_is_no_release(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "CHANGELOG.md"
    file.write_text(text)

    assert run(file, "1.2.3") == (1, "", f"notes: CHANGELOG.md: {problem}\n")


def test_a_missing_changelog_is_named(tmp_path: Path) -> None:
    status, _, error = run(tmp_path / "CHANGELOG.md", "1.2.3")

    assert (status, "No such file" in error) == (1, True)


def test_our_own_changelog_has_the_notes_of_the_version() -> None:
    changelog = ROOT / "CHANGELOG.md"
    sections = re.findall(r"^## (\S+) / (\S+)$", changelog.read_text(), re.MULTILINE)
    (released, _), (_, date) = sections[sections[0][1] == "unreleased"], sections[0]
    status, text, error = run(changelog, released)

    assert sections[0][0] == __version__
    assert (status, error) == (0, "")
    assert text.startswith("### GPUs\n")
    assert date not in text
