import pytest

from tests.generated import FILES, ROOT

GOLDEN = [path for path in FILES if path.startswith("tests/golden/")]


def is_stale(path: str) -> bool:
    return FILES[path]() != (ROOT / path).read_text(encoding="utf-8")


def test_generated_files_are_current() -> None:
    others = (path for path in FILES if path not in GOLDEN)
    assert [path for path in others if is_stale(path)] == [], "run `make generate`"


@pytest.mark.parametrize("path", GOLDEN)
def test_golden_file_is_current(path: str) -> None:
    assert not is_stale(path), "run `make generate`"
