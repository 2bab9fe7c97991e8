"""The documents: short lines and sentences, a site without broken links, and alerts that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.pack import alerts
from tests.needs import require

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LINE, MAX_WORDS = 120, 30
# What a program writes, and what is not prose.
_GENERATED = re.compile(r"<!-- (?P<name>[a-z]+): .*? -->.*?<!-- end of (?P=name) -->", re.DOTALL)
_CODE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is neither generated, nor code, nor a row of a table."""
    for pattern in (_GENERATED, _CODE, _COMMENT):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            yield number, line


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield number of the first line and text of each sentence of the prose."""
    begin, words = 0, ""
    for number, line in [*prose(text), (0, "")]:
        ends = not line.strip() or re.match(r"\s*([-*#]|\d+\.)\s", line)
        if ends and words:
            for sentence in re.split(r"(?<=[.!?])\s+", words):
                yield begin, sentence
            words = ""
        if line.strip():
            begin = begin if words else number
            words += f" {line.strip()}"


def too_long(text: str) -> list[tuple[int, str]]:
    """Return the sentences with more words than allowed; code counts as one word."""
    found = ((number, re.sub(r"`[^`]*`|\]\([^)]*\)", " code ", sentence)) for number, sentence in sentences(text))
    return [(number, sentence) for number, sentence in found if len(re.findall(r"\w+", sentence)) > MAX_WORDS]


def test_lines_of_prose_are_short() -> None:
    lines = [(path.name, *line) for path in [*DOCUMENTS, ROOT / "CHANGELOG.md"] for line in prose(path.read_text())]

    assert [line for line in lines if len(line[2]) > MAX_LINE] == []


def test_sentences_are_short() -> None:
    for name in ("README.md", "docs/runbook.md", "docs/slow-training.md", "docs/nodes.md", "docs/paged.md"):
        assert too_long((ROOT / name).read_text()) == [], name


def test_a_long_line_and_a_long_sentence_are_found() -> None:
    lines = ["# A", "", "```", "x" * 130, "```", "", f"| {'y' * 130} |", "", f"- {'z' * 130}", ""]
    text = "\n".join([*lines, "word " * 20, "more " * 11])

    assert [number for number, line in prose(text) if len(line) > MAX_LINE] == [9]
    assert [number for number, _ in too_long(text)] == [11]
    assert too_long("word " * 20 + "ends. " + "More " * 20) == []


def test_nothing_advises_to_install_from_an_index() -> None:
    """gpugauge is on none: whoever takes the name there would be installed."""
    by_name = re.compile(r"\b(?:pip|pipx|uv tool) install\b[^\n`]*?[\s'\"]gpugauge(?![-\w/.])")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {*tracked.split("\0")} - {"", "tests/test_documents.py"}
    texts = {name: (ROOT / name).read_bytes().decode(errors="replace") for name in names if (ROOT / name).is_file()}

    assert by_name.search("pip install 'gpugauge[top]'")
    assert by_name.search("pipx install gpugauge")
    assert not by_name.search("pip install dist/gpugauge-*.whl")
    assert [f"{name}: {found[0]}" for name, text in texts.items() if (found := by_name.search(text))] == []


def test_each_section_of_the_runbook_begins_with_what_to_type() -> None:
    sections = re.split(r"^### ", (ROOT / "docs/runbook.md").read_text(), flags=re.MULTILINE)[1:]

    assert [part.split("\n")[0] for part in sections if not re.match(r"\w+\n\n```console\n\$ ", part)] == []


def test_the_page_for_the_paged_names_each_alert_once() -> None:
    known = {alert.name: alert.severity for alert in alerts(Parameters(critical=0.2, per_cause=True))}
    rows = re.findall(r"^\| ([A-Z][^|]*) \| ([^|]*) \|", (ROOT / "docs/paged.md").read_text(), re.MULTILINE)
    named = [name.replace("…", ".+") for row, _ in rows for name in row.split(", ")]

    assert [name for name in named if not any(re.fullmatch(name, alert) for alert in known)] == []
    assert [alert for alert in known if sum(bool(re.fullmatch(name, alert)) for name in named) != 1] == []
    for row, when in rows:
        for name in row.split(", "):
            severities = {known[alert] for alert in known if re.fullmatch(name.replace("…", ".+"), alert)}
            words = {"critical": "at once", "warning": "today", "info": "when there is time"}
            assert {severity for severity in words if words[severity] in when} == severities, name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site."""
    mkdocs = Path(sys.executable).with_name("mkdocs")
    require(mkdocs.exists(), "mkdocs is not installed (the extra docs)")
    folder = tmp_path_factory.mktemp("site")
    command = [str(mkdocs), "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.everything
def test_every_page_is_in_the_site_and_in_its_menu(site: Path) -> None:
    start = (site / "index.html").read_text()

    for path in sorted((ROOT / "docs").rglob("*.md")):
        place = f"{path.relative_to(ROOT / 'docs').with_suffix('')}/".removesuffix("index/")
        assert (site / place / "index.html").exists()
        assert f'href="{place or "."}"' in start, f"{path.name} is not in mkdocs.yml"


@pytest.mark.everything
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loaded = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:[^\"\s>]+)|<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*href=\"?(https?:[^\"\s>]+)"
    )

    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    assert [(page.name, found[0]) for page in pages for found in [loaded.search(page.read_text())] if found] == []


@pytest.mark.everything
def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    mkdocs = Path(sys.executable).with_name("mkdocs")
    require(mkdocs.exists(), "mkdocs is not installed (the extra docs)")
    tree = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - Start")[0]
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(tree.replace("deploy/site/links.py", str(ROOT / "deploy/site/links.py")))
    (tmp_path / "docs").mkdir()
    for text in ("[a](b.md)", "[a](#nothing)", "[a](../nothing.md)"):
        (tmp_path / "docs" / "index.md").write_text(f"# A\n\n{text}\n")
        done = subprocess.run(
            [mkdocs, "build", "--strict", "-f", settings], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, text
        assert "nothing" in done.stderr or "b.md" in done.stderr
