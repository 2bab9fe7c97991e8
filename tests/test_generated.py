import pytest

from tests.generated import FILES, ROOT


@pytest.mark.timeout(600)  # the tables of the verdict judge a thousand runs: 20 s of CPU time
@pytest.mark.parametrize("path", FILES)
def test_generated_file_is_current(path: str) -> None:
    assert FILES[path]() == (ROOT / path).read_text(encoding="utf-8"), f"{path} is stale: run `make generate`"
