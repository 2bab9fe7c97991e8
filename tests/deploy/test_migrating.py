import inspect
import re
from pathlib import Path

import nvitop_exporter.exporter
import pytest

from gpugauge import catalog
from tests.deploy.peer_metrics import ALL_SMI, NVIDIA_GPU_EXPORTER

TEXT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| `")]
# A metric of ours in the tables: its name, and in braces some labels, with or without a value.
OURS = re.compile(r"`((?:gpu|gpugauge|torch|training)_\w+)(?:\{([^}]*)\})?`")


def section(exporter: str) -> str:
    """Return the section about another exporter."""
    return TEXT.split(f"\n## From {exporter}\n")[1].split("\n## ")[0]


def theirs_in(exporter: str) -> set[str]:
    """Return the names in the first column of the last table of a section."""
    table = section(exporter).rpartition("| metric there")[2]
    return {name for line in table.splitlines()[2:] for name in re.findall(r"`([\w…]+)`", line.split("|")[1])}


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


@pytest.mark.parametrize(
    ("exporter", "names"),
    [
        ("nvitop-exporter", re.findall(r"name='(\w+)'", inspect.getsource(nvitop_exporter.exporter))),
        ("nvidia_gpu_exporter", NVIDIA_GPU_EXPORTER.split()),
        ("all-smi", ALL_SMI.split()),
    ],
)
def test_every_metric_of_the_other_exporter_is_in_the_table(exporter: str, names: list[str]) -> None:
    theirs, named = set(names), theirs_in(exporter)
    patterns = {name: re.compile(name.replace("…", r"\w+")) for name in named}
    assert len(theirs) > 40
    # Of the parts of an ECC counter only the kinds of memory have names in the table.
    sram = {name for name in theirs if "_sram_" in name}

    assert sorted(n for n in theirs - sram if not any(p.fullmatch(n) for p in patterns.values())) == []
    of_the_host = {"cpu_…", "memory_…", "disk_…", "chassis_…"}
    assert sorted(n for n, p in patterns.items() if n not in of_the_host and not any(map(p.fullmatch, theirs))) == []
