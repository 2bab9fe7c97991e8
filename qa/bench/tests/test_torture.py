"""The tables of the torture, and what it measures by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qa.bench import figures
from qa.bench.report import Report
from qa.torture import tables
from qa.torture.scrape import Scrape
from qa.torture.users.groups import memory_of, processes
from qa.torture.users.together import Training


def row(name: str, lost: int) -> dict[str, Any]:
    return {"fault": name, "scrapes": 10, "lost": lost, "slow": "2 (2 held up by the fault itself)", "wrong": 0}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """Return the tables that are written; the committed result has two rows and a crowd."""
    known = [
        {"title": "Faults", "rows": [row("one", 0), row("two", 1)], "notes": ["old totals", "slow is"]},
        {"title": "Crowd", "rows": [{"a": 1}], "notes": []},
    ]
    result = {"command": "c", "date": "2026-01-02", "minutes": 1, "faults at once": 1, "tables": known}
    monkeypatch.setattr(tables, "machine", lambda: {"processor": "ours"})
    monkeypatch.setattr(figures, "read", lambda _: {"processor": "ours", "cores": 2, **result})
    found: list[Report] = []
    monkeypatch.setattr(figures, "keep", lambda _name, reports, _facts: found.extend(reports))
    return found


def test_single_rows_replace_those_of_the_same_name_and_new_ones_are_added(kept: list[Report]) -> None:
    tables.keep_rows(Report("Faults", [row("new", 0), row("two", 0)], "c", ("totals", "slow is now")))

    assert [(r["fault"], r["lost"]) for r in kept[0].rows] == [("one", 0), ("two", 0), ("new", 0)]
    assert [r.get("on") for r in kept[0].rows] == ["2026-01-02", None, None]  # those that were measured before
    assert kept[0].notes == ("3 rows, 30 scrapes: 0 lost, 6 slow, 0 pages with a wrong value.", "slow is now")
    assert kept[1].title == "Crowd"


def test_the_table_of_all_attacks_follows_the_faults(kept: list[Report]) -> None:
    tables.keep_table(tables.together_table({"lost": 0}))

    assert [report.title for report in kept] == ["Faults", "All attacks of other users at once", "Crowd"]
    assert kept[1].rows == [{"what": "lost", "result": 0}]


def test_tables_of_another_machine_say_so(kept: list[Report], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "machine", lambda: {"processor": "another"})
    tables.keep_table(Report("Crowd", [{"a": 2}], "c"))

    assert kept[0].notes == ("old totals", "slow is", "Measured on 2026-01-02 on ours, 2 cores.")
    assert kept[1].notes == ()
    written = [{"title": made.title, "rows": made.rows, "notes": list(made.notes)} for made in kept]
    known = {"command": "c", "date": "2026-01-03", "processor": "another", "cores": 2, "minutes": 1}
    monkeypatch.setattr(figures, "read", lambda _: {**known, "faults at once": 1, "tables": written})
    monkeypatch.setattr(tables, "machine", lambda: {"processor": "a third"})
    kept.clear()
    tables.keep_table(Report("Other", [], "c"))

    assert kept[0].notes[-1] == "Measured on 2026-01-02 on ours, 2 cores."  # the first machine, not the last
    assert kept[2].notes == ("Measured on 2026-01-03 on another, 2 cores.",)


class _Process:
    pid = 7


@pytest.mark.parametrize(("shown", "late"), [(3, 0.0), (2, 1.5), (1, 4.0)])
def test_how_late_steps_are(shown: int, late: float, tmp_path: Path) -> None:
    """Steps 1 to 3 were made at 10, 12.5 and 15; the answer came at 16.5 and has `shown` of them."""
    training = Training.__new__(Training)
    training._file, training._process = tmp_path / "steps", _Process()  # type: ignore[assignment]  # a stand-in
    (tmp_path / "steps").write_text("1 10.0\n2 12.5\n3 15.0\n4 1")  # the last line is being written
    series = {'torch_process_info{pid="7",process="x"}': 1.0, 'torch_steps_total{process="x"}': float(shown)}

    assert training.late(Scrape(16.0, 0.5, "", series)) == late


def test_a_training_that_is_not_shown_is_late(tmp_path: Path) -> None:
    training = Training.__new__(Training)
    training._file, training._process = tmp_path / "none", _Process()  # type: ignore[assignment]  # a stand-in

    assert training.late(Scrape(16.0, 0.5, "", {'torch_steps_total{process="y"}': 3.0})) == float("inf")


def test_the_memory_of_a_process_and_its_children() -> None:
    found = processes(os.getppid())

    assert {os.getppid(), os.getpid()} <= set(found)
    proportional, resident = memory_of([os.getpid()])
    assert 0 < proportional <= resident
