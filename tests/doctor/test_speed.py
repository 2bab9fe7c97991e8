from pathlib import Path
from typing import Any

import pytest

from gpugauge.doctor import table
from gpugauge.doctor.case import Case
from gpugauge.doctor.target import ProbeResult
from gpugauge.driver.api import ProcessReading
from tests.doctor.cases import CUDA, H100, case, device, driver

WORKS = {**CUDA, "available": True, "devices": [H100]}
BUSY = device(0, utilization_percent=90)
HELD = device(0, utilization_percent=0, processes=(ProcessReading(7, "compute"),))


def test_a_free_device_is_measured(tmp_path: Path) -> None:
    assert table.obstacle(case(tmp_path, torch=WORKS)) == ""


@pytest.mark.parametrize("taken", [BUSY, HELD])
def test_a_device_in_use_is_not_measured(tmp_path: Path, taken: Any) -> None:
    assert table.SPEED.instead(case(tmp_path, driver(taken), WORKS)).found == "GPU 0 is in use"
    assert table.SPEED.instead(case(tmp_path, driver(taken), WORKS)).advice.endswith(": gpugauge doctor --force")
    assert table.obstacle(case(tmp_path, driver(taken), WORKS, force=True)) == ""


def test_another_device_may_be_in_use(tmp_path: Path) -> None:
    first_to_torch = {**WORKS, "devices": [{**H100, "uuid": "1"}]}

    assert table.obstacle(case(tmp_path, driver(BUSY, device(1)), first_to_torch)) == ""


def test_if_torch_reports_no_uuid_all_devices_must_be_free(tmp_path: Path) -> None:
    without_uuid = {**WORKS, "devices": [{**H100, "uuid": None}]}

    assert table.obstacle(case(tmp_path, driver(device(0), device(1)), without_uuid)) == ""
    assert table.obstacle(case(tmp_path, driver(BUSY, device(1)), without_uuid)) != ""


@pytest.mark.parametrize("options", [{"timed": False}, {"pid": 1}, {"simulation": {}}])
def test_options_without_measurements(tmp_path: Path, options: dict[str, Any]) -> None:
    assert table.obstacle(case(tmp_path, torch=WORKS, force=True, **options)) != ""


def test_nothing_is_measured_without_a_gpu(tmp_path: Path) -> None:
    assert table.obstacle(case(tmp_path, torch={**CUDA, "available": False})) == "torch has no usable GPU"


def measured(root: Path, ending: str = "", **figures: Any) -> Case:
    link = device(0, pcie_width=16, pcie_generation_max=4)
    result = case(root, driver(link), WORKS)
    result.timings = ProbeResult(figures, ending)
    return result


def test_matrix_products(tmp_path: Path) -> None:
    good = table.matrix_product(measured(tmp_path, matmul={"float32": 51e12, "bfloat16": 712.3e12}))
    bad = table.matrix_product(measured(tmp_path, matmul={"float32": 51e12, "float16": 52e12}))

    assert (good.level, good.found) == ("pass", "float32 51, bfloat16 712 TFLOP/s")
    assert bad.level == "warning"


def test_copies(tmp_path: Path) -> None:
    good = table.copies(measured(tmp_path, copies={"pageable": 6.21e9, "pinned": 25.3e9}))
    slow = table.copies(measured(tmp_path, copies={"pageable": 6.21e9, "pinned": 12e9}))

    assert (good.level, good.found) == ("pass", "pageable 6.21, pinned 25.3 GB/s")
    assert (slow.level, slow.cause) == ("warning", "transfer")
    assert "the PCIe link can carry 31.5" in slow.found


def test_training_step(tmp_path: Path) -> None:
    good = table.training_step(measured(tmp_path, steps={"cpu": 0.041, "gpu": 0.0012}))
    bad = table.training_step(measured(tmp_path, steps={"cpu": 0.041, "gpu": 0.04}))

    assert (good.level, good.found) == ("pass", "CPU 41 ms, GPU 1.2 ms: 34 times as fast")
    assert bad.level == "warning"


def test_failed_measurement_has_its_reason(tmp_path: Path) -> None:
    failed = table.training_step(measured(tmp_path, steps_error="RuntimeError: CUDA out of memory"))
    ended = table.copies(measured(tmp_path, "was ended by SIGKILL while copying to the device"))

    assert (failed.level, failed.found) == ("failure", "RuntimeError: CUDA out of memory")
    assert ended.found == "the Python was ended by SIGKILL while copying to the device"
