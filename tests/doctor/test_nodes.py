import os
from pathlib import Path

import pytest

from gpugauge.doctor.nodes import device_files, graphics_devices, in_container
from tests.doctor.cases import add_pci


def test_devices_on_the_bus(tmp_path: Path) -> None:
    there = [
        ("0x10de", "0x030200"),
        ("0x10de", "0x030000"),
        ("0x10de", "0x040300"),  # audio function of a GPU
        ("0x1a03", "0x030000"),  # a server's console
        *(("0x1002", kind) for kind in ("0x030000", "0x038000", "0x120000")),
    ]
    for number, (vendor, kind) in enumerate(there):
        add_pci(tmp_path, f"0000:0{number}:00.0", vendor, kind)

    assert graphics_devices(tmp_path / "sys") == {
        "NVIDIA": ["0000:00:00.0", "0000:01:00.0"],
        "AMD": ["0000:04:00.0", "0000:05:00.0", "0000:06:00.0"],
    }


def test_no_bus(tmp_path: Path) -> None:
    assert graphics_devices(tmp_path) == {}


def test_device_files_in_order(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidia-uvm", "nvidiactl", "nvidia-modeset", "null"):
        (tmp_path / name).touch()

    assert [(node.name, node.problem) for node in device_files(tmp_path)] == [
        ("nvidiactl", ""),
        ("nvidia-uvm", ""),
        ("nvidia2", ""),
        ("nvidia10", ""),
    ]


@pytest.mark.parametrize(
    ("code", "advice"),
    [(1, "device rules"), (6, "modprobe"), (19, "modprobe"), (13, "allow this user"), (5, "kernel log")],
)
def test_advice_for_a_file_that_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    (tmp_path / "nvidiactl").touch()

    def refuse(path: Path, flags: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)

    (node,) = device_files(tmp_path)
    assert node.problem == os.strerror(code)
    assert advice in node.advice


def test_containers(tmp_path: Path) -> None:
    assert in_container({}, tmp_path) is False
    assert in_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) is True
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/system.slice/docker-0f1e.scope\n")
    assert in_container({}, tmp_path) is True
