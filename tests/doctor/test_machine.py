from pathlib import Path

import pytest

from gpugauge.doctor import machine
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.gpus import Driver
from gpugauge.driver.api import MigReading
from tests.doctor.cases import NO_DRIVER, add_pci, case, device, device_files, driver, lost


def test_devices_on_the_bus_without_the_driver_are_a_warning(tmp_path: Path) -> None:
    pci = {"NVIDIA": 2}

    assert machine.graphics_devices(case(tmp_path, pci=pci)).level == "warning"
    # A container has access to the whole bus, but only to the GPUs that are passed to it.
    assert machine.graphics_devices(case(tmp_path, pci=pci, in_container=True)).level == "pass"


@pytest.mark.parametrize(
    ("pci", "platform", "level", "found"),
    [
        ({"AMD": 2}, "linux", "pass", "2 x AMD"),
        ({"NVIDIA": 1}, "linux", "pass", "1 x NVIDIA"),
        ({}, "darwin", "pass", "an Apple GPU; PyTorch uses it as the device mps"),
    ],
)
def test_machines_without_a_driver(tmp_path: Path, pci: dict[str, int], platform: str, level: str, found: str) -> None:
    finding = machine.graphics_devices(case(tmp_path, NO_DRIVER, pci=pci, platform=platform))

    assert (finding.level, finding.found) == (level, found)


def test_a_driver_that_works(tmp_path: Path) -> None:
    assert machine.driver(case(tmp_path)).found == "570.124.06, CUDA 12.8"


@pytest.mark.parametrize("reason", ["library_not_found", "driver_not_loaded", "no_permission", "timeout", "code_77"])
def test_a_driver_that_does_not(tmp_path: Path, reason: str) -> None:
    finding = machine.driver(case(tmp_path, Driver(reason), pci={"NVIDIA": 1}))

    assert (finding.level, finding.found) == ("failure", f"not usable: {reason}")
    assert finding.advice


def test_the_driver_of_the_vendor_is_needed(tmp_path: Path) -> None:
    finding = machine.driver(case(tmp_path, NO_DRIVER, pci={"AMD": 1}))

    assert (finding.title, finding.level) == ("AMD driver", "failure")
    assert "modprobe amdgpu" in finding.advice
    assert machine.driver(case(tmp_path, NO_DRIVER, pci={}, platform="darwin")).level == "skipped"


def test_devices_by_kind_and_those_that_are_lost(tmp_path: Path) -> None:
    h100, small = device(0, memory_total_bytes=80 << 30), device(2, name="NVIDIA T4", compute_capability=(7, 5))

    (whole,) = machine.devices(case(tmp_path, driver(h100, device(1, memory_total_bytes=80 << 30), small)))
    *broken, working = machine.devices(case(tmp_path, driver(h100, lost(1), lost(2, "hangs"))))

    assert whole.found == ("2 x NVIDIA H100, 80 GiB, compute capability 9.0; 1 x NVIDIA T4, compute capability 7.5")
    assert [(f.level, f.found) for f in broken] == [("failure", "GPU 1: gpu_is_lost"), ("failure", "GPU 2: hangs")]
    assert [finding.advice for finding in broken] == ["see the repair; replace it if it is lost again", ""]
    assert working.level == "pass"


def test_devices_that_are_all_lost(tmp_path: Path) -> None:
    assert [f.level for f in machine.devices(case(tmp_path, driver(lost(0), lost(1))))] == ["failure", "failure"]


@pytest.mark.parametrize(("pci", "shown"), [({}, "no GPU"), ({"Intel": 1}, "1 x Intel")])
def test_devices_of_the_driver_that_the_bus_does_not_show(tmp_path: Path, pci: dict[str, int], shown: str) -> None:
    finding = machine.graphics_devices(case(tmp_path, driver(device(), device(1)), pci=pci))

    assert (finding.level, finding.found) == ("pass", f"2 x NVIDIA by the driver; {shown} on the PCI bus")


def test_the_address_of_a_device_that_the_driver_lacks(tmp_path: Path) -> None:
    known = driver(device(pci_bus_id="00000000:3B:00.0"), device(1, pci_bus_id="00000000:D8:00.0"))
    one_is_missing = case(tmp_path, known)
    one_is_missing.pci = {"NVIDIA": ["0000:3b:00.0", "0001:af:00.0", "0000:d8:00.0"]}

    finding = machine.graphics_devices(one_is_missing)

    assert finding.found == "3 x NVIDIA on the PCI bus, but the driver has 2; it lacks 0001:af:00.0"


@pytest.mark.parametrize(
    ("names", "level", "found"),
    [
        ([], "failure", "there is no /dev/nvidia*"),
        (["nvidiactl", "nvidia-uvm"], "failure", "/dev/nvidia-uvm, /dev/nvidiactl, but no file of a GPU"),
        (["nvidiactl", "nvidia0"], "failure", "/dev/nvidia-uvm missing: CUDA cannot start"),
        (["nvidiactl", "nvidia-uvm", "nvidia0"], "pass", "all 3 can be opened"),
    ],
)
def test_device_files(tmp_path: Path, names: list[str], level: str, found: str) -> None:
    device_files(tmp_path, *names)

    finding = machine.cuda_files(case(tmp_path))

    assert (finding.level, finding.found) == (level, found)


def test_advice_in_a_container(tmp_path: Path) -> None:
    finding = machine.cuda_files(case(tmp_path, NO_DRIVER, pci={"NVIDIA": 1}, in_container=True))

    assert "docker run --gpus" in finding.advice


def test_files_of_a_driver_that_hangs_are_not_opened(tmp_path: Path) -> None:
    device_files(tmp_path, "nvidiactl")

    assert machine.cuda_files(case(tmp_path, driver(device(), lost(1, "hangs")))).level == "skipped"
    assert machine.cuda_files(case(tmp_path, Driver("timeout"))).level == "skipped"


@pytest.mark.parametrize(
    ("environ", "works", "level"),
    [
        ({}, False, "failure"),
        *(({"NVIDIA_VISIBLE_DEVICES": none}, False, "failure") for none in ("void", "none", "")),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, True, "pass"),  # as with CDI
        ({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}, True, "failure"),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility,compute"}, True, "pass"),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"}, True, "pass"),
    ],
)
def test_containers(tmp_path: Path, environ: dict[str, str], works: bool, level: str) -> None:
    container = case(tmp_path, None if works else NO_DRIVER, environ=environ, in_container=True, pci={"NVIDIA": 1})

    assert machine.container(container).level == level


def test_a_container_with_amd_devices_needs_no_nvidia_device(tmp_path: Path) -> None:
    assert machine.container(case(tmp_path, NO_DRIVER, pci={"AMD": 1}, in_container=True)).level == "pass"


def test_variables_of_the_container_runtime_are_ignored_outside_containers(tmp_path: Path) -> None:
    assert machine.container(case(tmp_path, environ={"NVIDIA_VISIBLE_DEVICES": "none"})).level == "pass"


def visible(root: Path, value: str | None, *names: str, order: str = "") -> tuple[str, str, str | None]:
    environ = {"CUDA_DEVICE_ORDER": order} | ({} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    devices = [device(index, name=name) for index, name in enumerate(names)]
    finding = machine.visible_devices(case(root, driver(*devices), environ=environ))
    return finding.level, finding.found, finding.cause


def test_visible_devices(tmp_path: Path) -> None:
    two = ("H100", "H100")

    assert visible(tmp_path, None, *two) == ("pass", "CUDA_VISIBLE_DEVICES is not set: all 2 GPUs", None)
    assert visible(tmp_path, "1", *two) == ("pass", "CUDA_VISIBLE_DEVICES is '1': GPU 1", None)
    assert visible(tmp_path, "-1", *two)[::2] == ("failure", "no_visible_device")
    assert visible(tmp_path, "", *two)[::2] == ("failure", "no_visible_device")
    assert visible(tmp_path, "0,7", *two)[0] == "warning"


def test_device_numbers_are_ambiguous_if_devices_differ(tmp_path: Path) -> None:
    assert visible(tmp_path, "0", "T400", "H100")[0] == "warning"
    assert visible(tmp_path, "0", "T400", "H100", order="PCI_BUS_ID")[0] == "pass"
    assert visible(tmp_path, "GPU-0", "T400", "H100")[0] == "pass"
    assert visible(tmp_path, None, "T400", "H100")[0] == "pass"


def test_a_mig_device_by_its_uuid(tmp_path: Path) -> None:
    parted = device(0, mig_mode=True, mig_instances=(MigReading("MIG-a"), MigReading("MIG-b")))

    finding = machine.visible_devices(case(tmp_path, driver(parted), environ={"CUDA_VISIBLE_DEVICES": "MIG-b"}))

    assert finding.level == "pass"


def test_hidden_devices_without_a_driver(tmp_path: Path) -> None:
    hidden = machine.visible_devices(case(tmp_path, NO_DRIVER, environ={"CUDA_VISIBLE_DEVICES": ""}))
    unset = machine.visible_devices(case(tmp_path, NO_DRIVER))

    assert (hidden.level, unset.level) == ("failure", "skipped")


@pytest.mark.parametrize("available", [True, False])
def test_the_gpu_of_a_jetson_is_seen_by_torch_alone(available: bool, tmp_path: Path) -> None:
    jetson = case(tmp_path, NO_DRIVER, {"torch": "2.1", "available": available}, pci={})

    assert (jetson.by_torch_alone, jetson.is_bare) == (available, not available)
    assert machine.graphics_devices(jetson).level == ("pass" if available else "warning")
    assert machine.driver(jetson).level == "skipped"


@pytest.mark.parametrize(
    ("environ", "mark"), [({"APPTAINER_CONTAINER": "/x.sif"}, ""), ({"SINGULARITY_CONTAINER": "/x"}, ""), ({}, "1")]
)
def test_apptainer_is_a_container_that_needs_nv(environ: dict[str, str], mark: str, tmp_path: Path) -> None:
    add_pci(tmp_path, "0000:10:00.0", "0x10de", "0x030200")
    if mark:
        (tmp_path / ".singularity.d").mkdir()
    inside = Case(Options(), environ, tmp_path, "linux")
    inside.driver = NO_DRIVER

    assert inside.in_container
    assert "--nv" in machine.driver(inside).advice
    assert "--nv" in machine.container(inside).advice
