from __future__ import annotations

from pathlib import Path

from gpugauge.driver.bus import BusDevice
from gpugauge.driver.nvidia.bus import bound_devices, bus_devices, may_have_gpu
from tests.drawn import cases


def test_devices_that_the_kernels_driver_is_bound_to(tmp_path: Path) -> None:
    for address in ("0000:19:00.0", "0000:3b:00.0"):
        (tmp_path / "driver/nvidia/gpus" / address).mkdir(parents=True)

    assert bound_devices(tmp_path) == frozenset({"0000:19:00.0", "0000:3b:00.0"})


def test_devices_are_unknown_without_the_driver(tmp_path: Path) -> None:
    assert bound_devices(tmp_path) is None


def machine(root: Path) -> None:
    """A machine with GPUs of NVIDIA in several states, one of another vendor, and an audio device."""
    for name, vendor, kind, driver in (
        ("0000:10:00.0", "0x10de", "0x030200", "nvidia"),
        ("0000:11:00.0", "0x10de", "0x030000", "vfio-pci"),
        ("0000:12:00.0", "0x10de", "0x030200", None),
        ("0000:13:00.0", "0x10de", "0x030200", "nvidia"),
        ("0000:14:00.0", "0x10de", "0x030200", "nvidia"),
        ("0000:15:00.0", "0x1002", "0x030000", "amdgpu"),
        ("0000:10:00.1", "0x10de", "0x040300", "snd_hda_intel"),
        ("0000:16:00.4", "0x10de", "0x030200", "nvidia"),
    ):
        device = root / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        if driver:
            (device / "driver").symlink_to(root / "drivers" / driver)
    (root / "sys/bus/pci/devices/0000:16:00.4/physfn").symlink_to("../0000:16:00.0")
    for name, minor, excluded in (("0000:10:00.0", 0, "No"), ("0000:13:00.0", 1, "Yes"), ("0000:14:00.0", 2, "No")):
        folder = root / "proc/driver/nvidia/gpus" / name
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t H100\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}\n")
    (root / "dev").mkdir()
    for minor in (0, 1):  # in a container: the file of the third one is missing
        (root / "dev" / f"nvidia{minor}").touch()


def test_devices_on_the_bus(tmp_path: Path) -> None:
    machine(tmp_path)

    assert bus_devices(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev") == (
        BusDevice("0000:10:00.0", visible=True),
        BusDevice("0000:11:00.0", "bound to vfio-pci"),
        BusDevice("0000:12:00.0", "bound to no driver"),
        BusDevice("0000:13:00.0"),
        BusDevice("0000:14:00.0"),
    )


def test_bus_that_cannot_be_read(tmp_path: Path) -> None:
    assert bus_devices(tmp_path / "sys", tmp_path / "proc", tmp_path / "dev") is None


@cases("bus", [None, (), (BusDevice("0000:19:00.0"),)])
@cases("file", ["", "nvidiactl", "nvidia0", "dxg"])
def test_whether_a_machine_may_have_a_gpu(tmp_path: Path, bus: tuple[BusDevice, ...] | None, file: str) -> None:
    (tmp_path / (file or "null")).touch()

    # The control file is there without a GPU, too; WSL has no GPU on the bus.
    assert may_have_gpu(bus, tmp_path) == (bus != () or file in {"nvidia0", "dxg"})
