"""The words of the project: one word for one thing, the field's own (docs/architecture.md, "Vocabulary")."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drawn import cases

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Words of comments, docstrings, messages and documents, and what to write instead.
PROSE = {
    "card": "GPU",
    "cards": "GPUs",
    "blame": "cause",
    "blamed": "named as the cause",
    "ear": "the hook socket",
    "hears": "receives",
    "heard": "received",
    "tell": "report",
    "tells": "reports",
    "told": "reported",
    "anew": "again",
    "whoever": "the client",
    "somebody": "a client, a user",
    "so many-th": "the ordinal",
}
# Parts of identifiers, and what to call it instead.
NAMES = {
    "card": "device",
    "cards": "devices",
    "blame": "cause",
    "ear": "a noun of the field",
    "heard": "received",
    "met": "registered",
    "saw": "a verb of the field",
    "told": "reported",
    "tells": "reports",
    "looked": "recorded",
    "room": "package, space",
    "much": "a limit with its unit",
}
_WORD = re.compile(rf"(?<![\w./`-])({'|'.join(PROSE)})(?![\w`-])", re.IGNORECASE)
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# Fenced code, generated tables, inline code and link targets.
_NOT_PROSE = re.compile(
    r"```.*?```|<!-- (?P<name>[a-z ]+): .*? -->.*?<!-- end of (?P=name) -->|`[^`\n]*`|\]\([^)]*\)", re.DOTALL
)


def _words(text: str, place: str) -> Iterator[str]:
    for found in _WORD.finditer(text):
        line = text[: found.start()].count("\n")
        yield f"{place}, line {line + 1}: {found[0]!r}, write {PROSE[found[0].lower()]!r}"


def _faults(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        place = f"{path.relative_to(ROOT)}:{token.start[0]}"
        if token.type == tokenize.NAME:
            parts = [part.lower() for part in _PART.findall(token.string)]
            yield from (f"{place}: the name {token.string!r}, use {NAMES[part]!r}" for part in parts if part in NAMES)
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and re.search(r"\s", token.string)):
            text = re.sub(r"`[^`\n]*`", "", token.string)
            yield from (f"{place}: {found[0]!r}, write {PROSE[found[0].lower()]!r}" for found in _WORD.finditer(text))


def test_code_uses_the_words_of_the_project() -> None:
    assert [fault for path in SOURCES for fault in _faults(path)] == []


def test_documents_use_the_words_of_the_project() -> None:
    found: list[str] = []
    for path in DOCUMENTS:
        text = _NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text())
        found += _words(text, path.name)

    assert found == []


@cases(
    ("code", "faults"),
    [
        ("card = 1", 1),
        ("discard = wildcard = 1", 0),
        ("class CardSource: ...", 1),
        ("# the card is lost", 1),
        ("x = 'failing-card'", 0),
        ('"""It tells `told` of a lost-card."""', 1),
    ],
)
def test_a_word_is_found(code: str, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_vocabulary.ROOT", tmp_path)
    (tmp_path / "code.py").write_text(code + "\n")

    assert len(list(_faults(tmp_path / "code.py"))) == faults
