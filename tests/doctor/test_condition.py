import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from qa.worlds.nodes import Gpu, Node

from gpugauge.doctor import condition, machine
from gpugauge.doctor.finding import Finding
from gpugauge.doctor.table import Check
from gpugauge.driver.api import ProcessReading
from gpugauge.faults.repair import SEE
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.rows import problem_words
from tests.doctor.cases import NO_DRIVER, case, device, driver, findings, lost
from tests.doctor.daemons import answers_of, serving

HERE = driver(*(device(index) for index in range(3)), lost(3, "hangs"), lost(4), device(5), device(6))
PROHIBITED = {"compute_mode": "prohibited"}


def found(root: Path, check: Check, **reading: Any) -> Finding:
    """Return the only finding about two GPUs, of which the second has this reading."""
    (only,) = findings(check, case(root, driver(device(0), device(1, **reading))))
    return only


@pytest.mark.parametrize(
    ("check", "reading", "level", "cause", "text"),
    [
        (condition.modes, PROHIBITED, "failure", None, "GPU 1 (GPU-1): the compute mode is Prohibited"),
        (condition.modes, {"mig_mode": True, "mig_instances": None}, "pass", None, "every GPU allows computation"),
        (
            condition.modes,
            {"mig_mode": True, "mig_instances": ()},
            "failure",
            "no_visible_device",
            "GPU 1 (GPU-1): MIG is on and there is no MIG device",
        ),
        (
            condition.health,
            {"recovery_action": "node_reboot"},
            "failure",
            None,
            "GPU 1: the driver requires a reboot of the node after an error",
        ),
        (
            condition.health,
            {"recovery_action": "recovery_action_9"},
            "failure",
            None,
            "GPU 1: the driver requires recovery action 9 after an error",
        ),
        (
            condition.health,
            {"remapped_rows_failure": True},
            "failure",
            None,
            "GPU 1: the remapping of a faulty memory row failed",
        ),
        (
            condition.health,
            {"ecc_errors": {"uncorrected_volatile": 3, "corrected_volatile": 9}},
            "warning",
            None,
            "GPU 1: 3 uncorrected memory errors since the driver was loaded",
        ),
        (
            condition.health,
            {"remapped_rows_pending": True, "remapped_rows": {"uncorrectable": 1}},
            "warning",
            None,
            "GPU 1: a faulty memory row waits to be remapped",
        ),
        (
            condition.health,
            {"retired_pages_pending": True, "retired_pages": {"single_bit": 2, "double_bit": 1}},
            "warning",
            None,
            "GPU 1: a faulty memory page waits to be retired",
        ),
        (
            condition.health,
            {"retired_pages": {"single_bit": 58, "double_bit": 2}},
            "failure",
            None,
            "GPU 1: 60 of at most 64 memory pages are retired",
        ),
        (condition.health, {"retired_pages": {"single_bit": 59}}, "pass", None, "the driver reports none"),
        (condition.health, {"ecc_errors": {"corrected_volatile": 9}}, "pass", None, "the driver reports none"),
        (condition.clocks, {"clocks_event_reasons": ["gpu_idle", "sw_power_cap"]}, "pass", None, "not reduced now"),
        (
            condition.clocks,
            {"clocks_event_reasons": ["hw_slowdown", "hw_thermal_slowdown"]},
            "warning",
            "throttled",
            "GPU 1: clocks lowered: thermal slowdown (hardware), hardware slowdown",
        ),
        (
            condition.clocks,
            {"power_limit_milliwatts": 300_000, "power_limit_default_milliwatts": 700_000},
            "warning",
            "throttled",
            "GPU 1: power limit 300 W, default 700 W",
        ),
        (condition.pcie, {}, "skipped", None, "the width is not reported"),
        (
            condition.pcie,
            {"pcie_width": 8, "pcie_width_max": 16},
            "warning",
            "transfer",
            "GPU 1: its PCIe link has 8 of 16 lanes: copies between host and GPU take longer",
        ),
        (
            condition.pcie,
            {"pcie_width": 8, "pcie_width_max": 8},
            "pass",
            None,
            "8 lanes, the maximum of GPU and slot",
        ),
    ],
)
def test_condition(
    tmp_path: Path, check: Check, reading: dict[str, Any], level: str, cause: str | None, text: str
) -> None:
    finding = found(tmp_path, check, **reading)

    assert (finding.level, finding.cause, finding.found) == (level, cause, text)
    in_the_plan = any(words in text for words in ("a reboot", "remapping of", "be retired", "are retired"))
    assert bool(finding.advice) == (level in {"warning", "failure"})
    assert (finding.advice == SEE) == in_the_plan


def processes(*pids: int, kind: Any = "compute") -> tuple[ProcessReading, ...]:
    return tuple(ProcessReading(pid, kind) for pid in pids)


@pytest.mark.parametrize(
    ("places", "level"),
    [([7, 10], "pass"), ([7, 7], "warning"), ([None, None], "pass")],
)
def test_only_those_on_one_mig_device_share_it(tmp_path: Path, places: list[int | None], level: str) -> None:
    both = tuple(
        ProcessReading(pid, "compute", gpu_instance_id=place, compute_instance_id=place and 0)
        for pid, place in enumerate(places, 1)
    )

    use = found(tmp_path, condition.use, mig_mode=True, processes=both)
    assert use.level == level
    assert all(place is None or f"{pid} (GI {place})" in use.found for pid, place in enumerate(places, 1))


def test_use(tmp_path: Path) -> None:
    alone = found(tmp_path, condition.use, utilization_percent=80, memory_used_bytes=30 << 30, processes=processes(7))
    shared = found(tmp_path, condition.use, utilization_percent=80, processes=processes(7, 8))
    desktop = found(tmp_path, condition.use, utilization_percent=0, processes=processes(7, 8, kind="graphics"))
    elsewhere = found(tmp_path, condition.use, utilization_percent=0, memory_used_bytes=30 << 30, processes=())
    unknown = found(tmp_path, condition.use, processes=None)

    assert (alone.level, alone.found) == ("pass", "GPU 1: 80 % busy, 30 GiB held by pid 7; GPU 0 free")
    assert (shared.level, shared.cause) == ("warning", "contention")
    assert desktop.found == "GPUs 0, 1 free"
    assert elsewhere.found == "GPU 1: 0 % busy, 30 GiB held; GPU 0 free"
    assert unknown.found == "GPU 1: 0 GiB held; GPU 0 free"


def test_obstacle(tmp_path: Path) -> None:
    assert condition.obstacle(case(tmp_path, driver(lost(0)))) == "no GPU answers"
    assert condition.obstacle(case(tmp_path)) == ""


def test_every_device_is_reported(tmp_path: Path) -> None:
    more: Any = {"remapped_rows_pending": True}, {"recovery_action": "drain_p2p"}
    both = driver(*(device(index, **PROHIBITED, **facts) for index, facts in enumerate(more)))

    assert [f.found[:14] for f in findings(condition.modes, case(tmp_path, both))] == [
        "GPU 0 (GPU-0):",
        "GPU 1 (GPU-1):",
    ]
    assert [f.level for f in findings(condition.health, case(tmp_path, both))] == ["failure", "warning"]


def test_a_gpu_with_several_faults_has_one_line_with_one_advice(tmp_path: Path) -> None:
    broken = found(tmp_path, condition.health, recovery_action="node_reboot", remapped_rows_pending=True)

    assert broken.found.endswith("after an error; also: a faulty memory row waits to be remapped")
    assert broken.advice == SEE


def test_the_faults_are_those_that_the_daemon_lists(tmp_path: Path) -> None:
    faults: Any = {}, {"xid": 79}, {"reset": True, "uncorrected": 1}, {"slowed": "hw_slowdown"}
    down = Gpu("GPU-4", 4, "NVIDIA H100", up=False, reason="gpu_is_lost")
    node = Node([*(Gpu(f"GPU-{index}", index, "NVIDIA H100", **each) for index, each in enumerate(faults)), down], [])
    answers = answers_of(node)
    problems = decoded(Status, json.loads(answers["/api/v1/status"][1])).problems
    with serving(answers) as url:
        here, elsewhere, bare = (case(tmp_path, of, url=url) for of in (HERE, driver(device(9)), NO_DRIVER))
        checks = condition.health, condition.clocks, condition.pcie
        lines = [[f for check in checks for f in findings(check, of) if f.severity] for of in (here, elsewhere, bare)]
        unread = [f.found for f in findings(machine.devices, here)]

    shown = [(problem_words(p), p) for p in problems if p.kind != "repair"]
    listed = [(words, p.advice or SEE, p.grave) for words, p in shown]
    assert len(listed) == 4
    assert [(f.found, f.advice, f.level == "failure") for f in lines[0]] == listed
    assert lines[1:] == [[], lines[0]]
    # One that the daemon lists is not listed twice, one that fails here alone is.
    assert [text[:5] for text in unread] == ["GPU 3", "5 x N"]


def test_values_that_cannot_be_read(tmp_path: Path) -> None:
    soft = {"a": "not_supported", "b": "invalid_argument", "c": "no_permission", "d": "implausible_value"}
    both = replace(driver(device(0), device(1)), errors={0: soft, 1: {"a": "unknown", "b": "in_use", "c": "not_found"}})

    (only,) = findings(condition.values, case(tmp_path, both))

    assert (only.level, only.found) == ("warning", "GPU 1 (GPU-1): cannot be read: a (unknown), b (in_use)")
