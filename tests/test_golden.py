import re

from gpugauge import catalog
from tests.golden_metrics import FOLDER


def test_every_row_of_the_catalogue_is_in_a_golden_file() -> None:
    golden = "".join(path.read_text() for path in FOLDER.glob("*.text"))
    named = set(re.findall(r"^# TYPE (\S+)", golden, re.MULTILINE))

    missing = {row.name for row in catalog.metrics()} - named
    assert not missing, f"no golden file has {sorted(missing)}: run `make generate`, or let a scenario show it"


def test_no_row_of_a_golden_file_is_nan() -> None:
    for path in FOLDER.glob("*.text"):
        assert not re.findall(r"^[^#].* (?:NaN|[+-]Inf)$", path.read_text(), re.MULTILINE), path.name
