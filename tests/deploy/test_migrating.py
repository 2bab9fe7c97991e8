import inspect
import re
from pathlib import Path

import nvitop_exporter.exporter

from gpugauge import catalog

TEXT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| `")]
# A metric of ours in the tables: its name, and in braces some labels, with or without a value.
OURS = re.compile(r"`((?:gpu|gpugauge|torch|training)_\w+)(?:\{([^}]*)\})?`")


def labels_by_name() -> dict[str, set[str]]:
    return {row.name: set(row.labels) for row in catalog.metrics()}


def test_every_metric_of_ours_exists_with_its_labels() -> None:
    known = labels_by_name()
    named = [found for row in ROWS for found in OURS.findall(row[1]) if found[0] != "gpu_instance"]  # a label

    assert len(named) > 60
    assert [name for name, _ in named if name not in known] == []
    for name, labels in named:
        assert set(re.findall(r"(\w+)(?:=|,|$)", re.sub(r'"[^"]*"', "", labels))) <= known[name], name


def test_every_label_of_a_metric_in_the_tables_exists() -> None:
    known = labels_by_name()
    named = [(found, row[1]) for row in ROWS for found in re.findall(r"of `(\w+)`", row[1])]

    assert len(named) >= 8
    for metric, cell in named:
        assert set(re.findall(r"`(\w+)`", cell)) - {metric} <= known[metric], metric


def test_every_metric_of_nvitop_exporter_is_in_the_table() -> None:
    source = inspect.getsource(nvitop_exporter.exporter)
    theirs = set(re.findall(r"name='(\w+)'", source))
    table = TEXT[TEXT.index("## From nvitop-exporter") :]
    named = {name for row in ROWS if f"| {row[0]} |" in table for name in re.findall(r"`(\w+)`", row[0])}

    assert len(theirs) > 40
    assert named == theirs
