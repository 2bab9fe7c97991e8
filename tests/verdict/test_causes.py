from pathlib import Path

from bench.verdict import TABLES, markers

DOCUMENT = Path(__file__).parents[2] / "docs" / "verdict.md"


def test_tables_of_the_documentation_are_current() -> None:
    text = DOCUMENT.read_text()

    for name, table in TABLES.items():
        begin, end = markers(name)
        assert text.partition(begin)[2].partition(end)[0].strip() == table(), "python -m bench.verdict --write"
