"""A machine with GPUs of AMD besides their readings: its worker, partitions, other vendors, and who uses them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.cases import CPU, NO_DRIVER, ROCM, add_pci, case
from tests.workload.kubelet import listing

from gpugauge.collectors.training import training
from gpugauge.doctor import pytorch
from gpugauge.doctor.finding import Finding
from gpugauge.doctor.gpus import Driver
from gpugauge.doctor.machine import rocm_files, visible_devices
from gpugauge.doctor.table import examine
from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.driver.bus import BusDevice, amd_devices, bound_to_amd, worker_module
from gpugauge.driver.codes import DRIVER_NOT_LOADED, DriverError, DriverFacts, Group
from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.worker import Calls, Joined, Service
from gpugauge.node.node import Node
from gpugauge.node.window import Window
from gpugauge.sessions.session import Session
from gpugauge.verdict import facts
from gpugauge.wire import messages as wire
from gpugauge.workload.identity import Workload, device_names
from gpugauge.workload.kubelet import decode

ADDRESS = "0000:c1:00.0"


def gpu(root: Path, partitions: int = 1) -> Path:
    """Write the files of a GPU; return its folder."""
    folder = root / "sys/devices/pci0000:00" / ADDRESS
    place = root / "sys/class/drm/card1"
    files = {"vendor": "0x1002", "class": "0x120000", "unique_id": "00c0ffee00c0ffee", "mem_info_vram_total": "100"}
    files |= {"mem_info_vram_used": "7", "current_compute_partition": "CPX" if partitions > 1 else "SPX"}
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    place.mkdir(parents=True)
    (place / "device").symlink_to(folder)
    if partitions:
        topology(root, partitions)
    return folder


def topology(root: Path, partitions: int, version: int = 90402) -> None:
    kfd = root / "sys/class/kfd/kfd"
    for number in range(partitions):
        node = kfd / f"topology/nodes/{number + 1}"
        (node / "mem_banks/0").mkdir(parents=True, exist_ok=True)
        (node / "mem_banks/0/properties").write_text("heap_type 1\nsize_in_bytes 1024\n")
        (node / "gpu_id").write_text(f"{100 + number}\n")
        facts = f"domain 0\nlocation_id {0xC100 + number}\nunique_id {7000 + number}\nsimd_count 152\nsimd_per_cu 4\n"
        (node / "properties").write_text(f"{facts}gfx_target_version {version}\n")
        (kfd / "proc/55").mkdir(parents=True, exist_ok=True)
        (kfd / f"proc/55/vram_{100 + number}").write_text(f"{number << 20}\n")
    (kfd / "topology/generation_id").write_text(f"{partitions}\n")


def opened(root: Path) -> Amd:
    backend = Amd()
    backend.open(str(root / "sys"), str(root / "proc"))
    return backend


def test_partitions_are_devices_and_may_change(tmp_path: Path) -> None:
    gpu(tmp_path)
    backend = opened(tmp_path)
    whole, _ = backend.read(0, ["static", "mig", "processes"])
    topology(tmp_path, 4)
    (tmp_path / "sys/devices/pci0000:00" / ADDRESS / "current_compute_partition").write_text("QPX\n")
    divided, _ = backend.read(0, ["mig", "processes"])

    assert (whole["mig"]["mig_instances"], whole["processes"]["processes"]) == ([], [])
    assert [m["uuid"] for m in divided["mig"]["mig_instances"]] == [f"GPU-{7000 + n:016x}" for n in range(4)]
    assert {(m["profile"], m["sm_count"], m["memory_total_bytes"]) for m in divided["mig"]["mig_instances"]} == {
        ("qpx", 38, 1024)
    }
    assert divided["static"]["mig_mode"], "the identity is read again"
    assert [(p["gpu_instance_id"], p["used_memory_bytes"] >> 20) for p in divided["processes"]["processes"]] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]


def test_without_kfd_the_processes_are_not_known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gpu(tmp_path, partitions=0)
    backend = opened(tmp_path)
    found = [backend.read(0, ["processes"]) for _ in range(3)]

    assert found == [({"processes": {}}, {"processes": "not_supported"})] * 3
    assert capfd.readouterr().err.count("their processes are not known") == 1


def test_a_suspended_gpu_is_not_woken(tmp_path: Path) -> None:
    folder = gpu(tmp_path)
    (folder / "power").mkdir()
    (folder / "power/runtime_status").write_text("suspended\n")
    service = Service(opened(tmp_path))
    service.answer({"op": "read", "index": 0, "groups": ["static"]})
    reply = service.answer({"op": "read", "index": 0, "groups": ["fast", "normal", "slow"]})

    assert set(reply.calls) == {"power"}
    assert not reply.errors
    assert not any(reply.values.values())


# By version of the architecture in KFD: whether builds of torch for ROCm have code for it.
BUILT = {
    90002: False,
    90012: False,
    100306: False,
    110003: False,
    90402: True,
    110000: True,
    110501: True,
    110502: False,
    110503: False,
    130000: True,
}


@pytest.mark.parametrize("version", BUILT)
def test_a_build_for_the_cpu_is_right_with_a_gpu_that_no_build_is_for(tmp_path: Path, version: int) -> None:
    gpu(tmp_path)
    topology(tmp_path, 1, version)
    reading = DeviceReading.of(opened(tmp_path).read(0, ["static"])[0].values())
    node, window = Node(), Window()
    node.devices = (Device("GPU-1", True, "ok", reading, {}, vendor=AMD),)
    node.sessions = {"p": Session(wire.Hello("s", 1, 5, 1, 1.0, {"build": "cpu"}), 0, 1)}
    window.add(node)

    assert facts.evidence(window, "p", 0.0, 0.0, None).host_has_gpu is BUILT[version]
    assert (pytorch.build(case(tmp_path, NO_DRIVER, CPU, pci={"AMD": 1})).cause == "no_cuda_build") is BUILT[version]


def test_a_gpu_that_leaves_fails_as_lost(tmp_path: Path) -> None:
    folder = gpu(tmp_path)
    service = Service(opened(tmp_path))
    before = service.answer({"op": "read", "index": 0, "groups": ["fast", "normal"]})
    folder.rename(folder.with_name("aside"))
    after = service.answer({"op": "read", "index": 0, "groups": ["fast", "normal"]})

    assert before.values["normal"]["memory_used_bytes"] == 7
    assert after.failed == "gpu_is_lost"


def test_the_worker_is_that_of_the_gpus_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "sys/class/drm/card0/device").mkdir(parents=True)
    (tmp_path / "sys/class/drm/card0/device/vendor").write_text("0x10de\n")
    alone = worker_module(tmp_path / "sys")
    gpu(tmp_path)

    assert (alone, worker_module(tmp_path / "sys")) == ("gpugauge.driver.nvidia.worker", "gpugauge.driver.amd.worker")


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    drivers = {"0000:c1:00.0": "amdgpu", "0000:c2:00.0": "vfio-pci", "0000:c3:00.0": "radeon"}
    for address, driver in drivers.items():
        add_pci(tmp_path, address, "0x1002", "0x030000")
        home = tmp_path / "sys/bus/pci/drivers" / driver
        home.mkdir(parents=True)
        (home / address).touch()
        (tmp_path / "sys/bus/pci/devices" / address / "driver").symlink_to(home)

    assert bound_to_amd(tmp_path / "sys") == frozenset({"0000:c1:00.0"})
    assert amd_devices(tmp_path / "sys") == (
        BusDevice("0000:c1:00.0", visible=True),
        BusDevice("0000:c2:00.0", "bound to vfio-pci"),
    )


class Double:
    """A backend of `count` GPUs; without any it cannot be opened."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count, self.calls = name, count, Calls()

    def open(self) -> None:
        if not self.count:
            raise DriverError(DRIVER_NOT_LOADED, self.name)

    def close(self) -> None:
        self.count = 0

    def facts(self) -> DriverFacts:
        return DriverFacts(self.count, f"{self.name} 1")

    def read(self, index: int, _groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        return {"static": {"uuid": f"{self.name}{index}", "index": index}}, {}

    def samples(self, _index: int) -> tuple[dict[str, Any], dict[str, str]]:
        return {}, {}

    def lacks(self, index: int) -> Collection[str]:
        return {f"{self.name}{index}"}

    def take_events(self) -> list[dict[str, Any]]:
        return [{"of": self.name}]


@pytest.mark.parametrize(("first", "second"), [(2, 3), (0, 2), (1, 0)])
def test_the_gpus_of_two_vendors_have_consecutive_indexes(first: int, second: int) -> None:
    both = Joined((Double("a", first), Double("b", second)), Calls())
    both.open()
    values = [both.read(index, ["static"])[0]["static"] for index in range(both.facts().device_count)]

    assert values == [
        {"uuid": uuid, "index": index}
        for index, uuid in enumerate([*(f"a{n}" for n in range(first)), *(f"b{n}" for n in range(second))])
    ]
    assert [both.lacks(value["index"]) for value in values] == [{value["uuid"]} for value in values]
    assert both.facts().driver_version == ("a 1" if first else "b 1")


def test_without_any_driver_the_error_is_that_of_the_first() -> None:
    with pytest.raises(DriverError, match=f"a: {DRIVER_NOT_LOADED}"):
        Joined((Double("a", 0), Double("b", 0)), Calls()).open()


def test_pods_have_the_gpus_of_their_addresses() -> None:
    reply = listing({("research", "a"): {"main": {"amd.com/gpu": [ADDRESS]}}})
    (name,) = decode(reply, ("nvidia.com/", "amd.com/")).devices

    assert name in device_names("GPU-1", bus_id=ADDRESS)
    assert decode(reply, ("amd.com/",)).devices[name] == (Workload("pod", "research", "a", "main"),)


def test_the_doctor_names_the_files_that_rocm_lacks(tmp_path: Path) -> None:
    def found(**environ: str) -> Finding:
        return rocm_files(case(tmp_path, torch=ROCM, pci={"AMD": 1}, environ=environ))

    (tmp_path / "dev/dri").mkdir(parents=True)
    without = found()
    (tmp_path / "dev/kfd").touch()
    (tmp_path / "dev/dri/renderD128").touch()

    assert "/dev/kfd and no /dev/dri/renderD*" in without.found
    assert without.cause == "no_visible_device"
    assert found().found == "/dev/kfd and 1 of 1 GPUs can be opened"
    assert "10.3.0" in found(HSA_OVERRIDE_GFX_VERSION="10.3.0").found


def test_the_doctor_speaks_of_the_vendor_of_the_machine(tmp_path: Path) -> None:
    reading = DeviceReading.of([{"index": 0, "name": "AMD Instinct MI300X", "gfx_target": "gfx942", "processes": ()}])
    gpus = [Device(f"GPU-{n}", True, "ok", reading, {}, vendor=AMD) for n in range(2)]
    of = case(
        tmp_path,
        Driver("ok", DriverFacts(2, "6.16.13"), tuple(gpus)),
        {**ROCM, "architectures": ["gfx90a"]},
        pci={"AMD": 2},
    )
    found = [entry.finding for entry in examine(of) if entry.finding.level != "skipped"]
    lines = {finding.title: finding.found for finding in found}

    assert not [
        f for f in found if re.search(r"nvidia|(?<!torch\.)cuda|xid", f"{f.title} {f.found} {f.advice}".lower())
    ]
    assert lines["AMD driver"] == "amdgpu 6.16.13"
    assert lines["GPUs"] == "2 x AMD Instinct MI300X, gfx942"


def test_lists_of_rocm_count_within_each_other(tmp_path: Path) -> None:
    gpus = [Device(f"GPU-{n}", True, "ok", DeviceReading(index=n), {}, vendor=AMD) for n in range(4)]

    def shown(**environ: str) -> str:
        return visible_devices(
            case(tmp_path, Driver("ok", DriverFacts(4), tuple(gpus)), pci={"AMD": 4}, environ=environ)
        ).found.rpartition(": ")[2]

    assert shown() == "all 4 GPUs"
    assert shown(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="1") == "GPU 3"
    assert shown(ROCR_VISIBLE_DEVICES="2,3", CUDA_VISIBLE_DEVICES="0") == "GPU 2"
    assert shown(HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0") == "GPU 1"
    assert shown(ROCR_VISIBLE_DEVICES="GPU-3") == "GPU 3"
    assert "hides every GPU" in shown(ROCR_VISIBLE_DEVICES="2", HIP_VISIBLE_DEVICES="1")


def test_visibility_of_rocm() -> None:
    rocm = {"build": "rocm", "device_nodes": "8", "kernel_driver": "amdgpu"}
    hidden = [{"rocr_visible_devices": "(empty)"}, {"hip_visible_devices": "-1"}, {"device_nodes": "0"}]
    shown = [{"cuda_visible_devices": "(empty)"}, {"hip_visible_devices": "0"}, {}]  # HIP ignores an empty list

    assert [facts._visible_devices(rocm | each) for each in hidden] == [0, 0, 0]
    assert [facts._visible_devices(rocm | each) for each in shown] == [None] * 3


def test_architectures_of_a_build_for_rocm() -> None:
    def supported(built: str, **more: str) -> bool | None:
        node = Node()
        node.devices = (Device("GPU-1", True, "ok", DeviceReading.of([{"gfx_target": "gfx942"}]), {}, vendor=AMD),)
        snap = wire.Snap("s", 1, devices=(wire.Device(0, f"PCI-{ADDRESS}", capability="9.4"),))
        session = Session(
            wire.Hello("s", 1, 5, 1, 1.0, {}), 0, 1, replace(snap, facts={"architectures": built, **more})
        )
        named = training._named(session, {f"PCI-{ADDRESS}": "GPU-1"})
        return facts._arch_supported(node, named)

    assert supported("gfx90a gfx942:sramecc+:xnack-") is True
    assert supported("gfx90a gfx1100") is False
    assert supported("gfx90a gfx9-4-generic") is None
    assert supported("gfx90a", hsa_override_gfx_version="9.0.10") is None
    assert supported("") is None
