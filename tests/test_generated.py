import pytest

from tests.generated import FILES, ROOT, TABLES, document

GOLDEN = [path for path in FILES if path.startswith("tests/golden/")]


def is_stale(path: str) -> bool:
    return FILES[path]() != (ROOT / path).read_text(encoding="utf-8")


JUDGED = "docs/verdict.md"  # its tables judge a thousand runs


def test_generated_files_are_current() -> None:
    others = (path for path in FILES if path not in GOLDEN and path != JUDGED)
    assert [path for path in others if is_stale(path)] == [], "run `make generate`"


def test_tables_of_the_code_in_the_document_of_the_verdict_are_current() -> None:
    tables = {name: table for name, table in TABLES[JUDGED].items() if name not in {"summary", "matrix"}}
    assert document(JUDGED, tables) == (ROOT / JUDGED).read_text(encoding="utf-8"), "run `make generate`"


@pytest.mark.everything
@pytest.mark.timeout(600)
def test_published_figures_of_the_verdict_are_current() -> None:
    assert not is_stale(JUDGED), "run `make generate`"


@pytest.mark.parametrize("path", GOLDEN)
def test_golden_file_is_current(path: str) -> None:
    assert not is_stale(path), "run `make generate`"
