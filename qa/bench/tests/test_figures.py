"""Every measured figure comes from a committed result."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from qa.bench import cost, figures
from qa.bench.figures import FigureError, documents, read, renewed, without
from qa.bench.report import Report
from qa.bench.short import short

# Numbers in documents that no bench measures: limits, settings, versions, targets, and the conditions of a measurement.
GIVEN = yaml.safe_load((Path(__file__).parent / "given.yaml").read_text())
# Documents with measured figures.
DOCUMENTS = [path for path in documents() if path.parent.name == "proof" or "<!-- figure" in path.read_text()]
_GENERATED = re.compile(r"<!-- (?P<name>states|causes|summary|matrix):.*?<!-- end of (?P=name) -->", re.DOTALL)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_UNIT = r"(?:ms|µs|MB|MiB|GB|%|points|times|cores|million)(?!\w)"
_STATED = re.compile(rf"(?<![\w.,/-])(?:\d[\d,]*\.\d+(?![\w.])(?:\s{_UNIT})?|\d[\d,.]*\s?{_UNIT})")

RESULT = {
    "command": "python -m bench.one",
    "date": "2026-01-02",
    "processor": "one",
    "cores": 2,
    "python": "3.11",
    "load average before": 0.1,
    "stolen by other machines": "0 %",
    "tables": [{"name": "a", "title": "A", "rows": [{"what": "x|y", "ms": 1.2345}], "notes": ["A note."]}],
    "figures": {"most": "1,234.5"},
}


def named(path: Path) -> str:
    """Return the name of a document in given.yaml."""
    return str(path.relative_to(figures.ROOT)).removeprefix("docs/")


def stated(text: str) -> list[str]:
    """Return the numbers of a document that look like figures and come from no result."""
    text = _CODE.sub("", _GENERATED.sub("", without(text)))
    return [" ".join(match[0].split()) for match in _STATED.finditer(text)]


def result(name: str) -> dict[str, Any]:
    if name != "one":
        raise FigureError(f"there is no {name}")
    return RESULT


@pytest.mark.parametrize("path", list(documents()), ids=named)
def test_figures_of_a_document_are_those_of_committed_results(path: Path) -> None:
    assert renewed(path.read_text()) == path.read_text(), "run `python -m qa.bench.figures`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_other_numbers_of_a_document_are_given_not_measured(path: Path) -> None:
    """A measured figure has a marker; any other number is listed in given.yaml."""
    assert set(stated(path.read_text())) == set(GIVEN.get(named(path), []))


@pytest.mark.parametrize("path", sorted(figures.RESULTS.glob("*")), ids=lambda path: path.name)
def test_each_result_is_whole_and_in_a_document(path: Path) -> None:
    found = read(path.stem)

    assert found["command"].startswith("python -m qa.")
    assert {"date", "processor", "cores", "python"} <= found.keys()
    assert all(one["rows"] and one["title"] for one in found["tables"])
    used = re.compile(rf"<!-- figures?: {path.stem}[. ]|qa/bench/results/{path.stem}\.json")
    assert any(used.search(document.read_text()) for document in documents())


def shortened(name: str) -> list[Report]:
    found = [Report(t["title"], t["rows"], "c", t["notes"], t["name"]) for t in read(name)["tables"]]
    return short(name, found)


def test_sums_in_a_document_are_of_all_rows() -> None:
    accuracy, conditions, torture = shortened("accuracy")[0], shortened("conditions"), shortened("torture")[0]
    rows = read("torture")["tables"][0]["rows"]

    assert max(row["gpugauge, worst"] for row in accuracy.rows) == read("accuracy")["figures"]["worst"]
    for column in ("statements", "silent", "wrongly named"):
        cells = ([str(row[column]).split("/") for row in made.rows] for made in conditions)
        first, second = ([sum(map(int, of)) for of in zip(*made, strict=True)] for made in cells)
        assert first == second
    assert [sum(row[column] for row in torture.rows) for column in ("faults", "scrapes")] == [
        len(rows),
        sum(row["scrapes"] for row in rows),
    ]


def test_a_fault_that_went_wrong_is_named() -> None:
    cells = {"scrapes": 9, "wrong": 0, "worst ms": 7, "reported after s": "", "whole after s": 2.5}
    bad = {"lost": 2, "slow": "1 (0 held up)", **cells, "whole after s": "never"}
    rows = [{"fault": "one", "kind": "k", "lost": 0, "slow": "0", **cells}, {"fault": "two", "kind": "k", **bad}]

    (made,) = short("torture", [Report("Faults", rows, "c", ("totals", "slow is"))])

    (row,) = made.rows
    assert (row["faults"], row["lost"], row["slow"], row["whole after s"]) == (2, 2, 1, "inf")
    assert made.notes[1:] == ("Not all as usual: two (lost 2, slow 1 (0 held up), wrong 0, 7 ms).",)


def test_the_memory_of_all_processes_is_near_the_target() -> None:
    # What the simulated library takes is measured apart and subtracted: 3.8 to 4.7 MB in runs of one day.
    found = read("cost")
    ours = {row["part"]: row for row in found["tables"][0]["rows"] if row["exporter"] == "gpugauge"}
    row = ours["all" + cost.WITHOUT]

    assert row["PSS MB"] < cost.MAX_MEGABYTES + 1.5


def test_tables_and_figures_replace_what_a_document_says() -> None:
    text = "a\n<!-- figures: one -->\nold\n<!-- end of figures -->\nup to <!-- figure: one.most -->9.5 µs. 7"

    new = renewed(text, result)

    assert "old" not in new
    assert "### A" in new
    assert "| x&#124;y | 1.23 |" in new
    assert "A note." in new
    assert "`python -m bench.one`, 2026-01-02" in new
    assert new.endswith("up to <!-- figure: one.most -->1,234.5 µs. 7")
    assert renewed(new, result) == new
    assert without(new) == "a\n\nup to  µs. 7"


@pytest.mark.parametrize(
    "marker",
    [
        "<!-- figures: two -->\n<!-- end of figures -->",
        "<!-- figures: one.b -->\n<!-- end of figures -->",
        "<!-- figure: one.least -->0",
    ],
)
def test_marker_without_a_result_is_an_error(marker: str) -> None:
    with pytest.raises(FigureError):
        renewed(marker, result)


@pytest.mark.parametrize(
    "text",
    ["takes 7 ms", "takes 7.25 s", "needs 43 MB", "1.13 times", "0.5 % of a core", "at most 5 points", "1,234 µs"],
)
def test_figure_without_a_marker_is_noticed(text: str) -> None:
    assert stated(f"The hook {text}, and more.")
    assert not stated(f"The hook `{text}`, and more.")


def test_result_is_kept_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "README.md"
    document.write_text("<!-- figure: one.least -->0 ms\n<!-- figures: one.a -->\n<!-- end of figures -->\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    rows = [{"what": "x", "ms": 2.5}]

    figures.keep("one", [Report("A", rows, "python -m bench.one", name="a", figures={"least": "2.5"})], {"minutes": 3})

    kept = json.loads((tmp_path / "one.json").read_text())
    assert (kept["tables"][0]["rows"], kept["figures"], kept["minutes"]) == (rows, {"least": "2.5"}, 3)
    assert document.read_text().startswith("<!-- figure: one.least -->2.5 ms\n")
    assert "| x | 2.5 |" in document.read_text()
