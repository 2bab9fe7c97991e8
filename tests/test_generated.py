import time
from functools import partial
from itertools import count

import pytest

from tests.generated import FILES, RECORDS, ROOT

GOLDEN = [path for path in FILES if path.startswith("tests/golden/")]
RECORDED = [str(record.file.relative_to(ROOT)) for record in RECORDS]  # qa/worlds/test_drawn_*.py


def is_stale(path: str) -> bool:
    return FILES[path]() != (ROOT / path).read_text(encoding="utf-8")


def test_generated_files_are_current() -> None:
    others = (path for path in FILES if path not in {*GOLDEN, *RECORDED})
    assert [path for path in others if is_stale(path)] == [], "run `make generate`"


@pytest.mark.parametrize("path", GOLDEN)
def test_golden_file_is_current_on_a_slow_machine_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", partial(next, count(step=0.1)))  # between any two looks at it

    assert not is_stale(path), "run `make generate`"
