import json

from gpugauge import catalog
from gpugauge.artifacts.reference import as_json, as_text


def test_every_row_is_in_every_format() -> None:
    names = [row.name for row in catalog.metrics()]

    assert [entry["name"] for entry in json.loads(as_json())] == names
    assert [line.split("{")[0].split(" ")[0] for line in as_text().splitlines() if not line.startswith(" ")] == names


def test_there_are_at_least_90_rows() -> None:
    assert len(catalog.metrics()) >= 90


def test_no_help_breaks_the_table() -> None:
    assert not [row.name for row in catalog.metrics() if "|" in row.help + row.source + row.devices]
