from pathlib import Path

import pytest

from gpugauge.doctor import machine, table
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding
from gpugauge.doctor.table import Group, examine
from gpugauge.doctor.target import ProbeResult
from tests.doctor.cases import CUDA, H100, case

WORKS = {**CUDA, "available": True, "devices": [H100], "architectures": ["sm_90"]}


def test_a_free_device_and_a_torch_that_uses_it(tmp_path: Path) -> None:
    works = case(tmp_path, torch=WORKS)
    works.timings = ProbeResult(
        {"matmul": {"float32": 5e13}, "copies": {"pinned": 2e10}, "steps": {"cpu": 1.0, "gpu": 0.1}}
    )

    entries = list(examine(works))

    groups = (table.MACHINE, table.FAULTS, table.CONDITION, table.HERE, table.PYTHON, table.PYTORCH, table.SPEED)
    assert [entry.check for entry in entries] == [check.__name__ for group in groups for check in group.checks]


def test_one_line_replaces_a_group_with_an_obstacle(tmp_path: Path) -> None:
    no_torch = case(tmp_path, torch={"python": "3.12.1", "missing": True}, timed=False)

    instead = [entry.finding for entry in examine(no_torch) if entry.check == "obstacle"]

    assert [(finding.title, finding.found) for finding in instead] == [
        ("Build and devices", "torch was not loaded"),
        ("Timed checks", "switched off (--no-timed)"),
    ]


def test_checks_of_a_process_do_not_use_this_terminals_torch(tmp_path: Path) -> None:
    unknown = case(tmp_path, pid=4711)
    unknown.daemon = (None, "no daemon")

    assert {entry.group for entry in examine(unknown)} == {"Machine", "Condition", "Process"}


def test_an_unknown_process_takes_few_lines(tmp_path: Path) -> None:
    unknown = case(tmp_path, pid=4711)
    unknown.daemon = (None, "no daemon")

    checks = [entry.check for entry in examine(unknown) if entry.group == "Process"]

    assert checks == ["existence", "obstacle", "daemon", "obstacle"]


def test_a_process_and_a_python(tmp_path: Path) -> None:
    both = case(tmp_path, pid=4711, python="/venv/bin/python")
    both.daemon = (None, "no daemon")

    assert "PyTorch" in {entry.group for entry in examine(both)}


def test_a_check_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slot_width(_: Case) -> Finding:
        raise KeyError("width")

    monkeypatch.setattr(table, "MACHINE", Group("Machine", (slot_width, machine.driver)))

    broken, after = list(examine(case(tmp_path, torch=WORKS, timed=False)))[:2]

    assert (broken.finding.level, broken.finding.title) == ("warning", "Slot width")
    assert broken.finding.found == "the check itself failed: KeyError: 'width'"
    assert (after.check, after.finding.level) == ("driver", "pass")
