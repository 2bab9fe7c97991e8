from __future__ import annotations

from pathlib import Path

from gpugauge.driver.nvidia.bus import bound_devices


def test_devices_that_the_kernels_driver_is_bound_to(tmp_path: Path) -> None:
    for address in ("0000:19:00.0", "0000:3b:00.0"):
        (tmp_path / "driver/nvidia/gpus" / address).mkdir(parents=True)

    assert bound_devices(tmp_path) == frozenset({"0000:19:00.0", "0000:3b:00.0"})


def test_devices_are_unknown_without_the_driver(tmp_path: Path) -> None:
    assert bound_devices(tmp_path) is None
