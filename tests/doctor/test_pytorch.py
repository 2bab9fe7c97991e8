from pathlib import Path
from typing import Any

import pytest

from gpugauge.doctor import pytorch
from gpugauge.doctor.finding import Finding
from gpugauge.doctor.table import Check
from gpugauge.doctor.target import ProbeResult
from tests.doctor.cases import CPU, CUDA, H100, NO_DRIVER, ROCM, case, device, driver, findings

MPS = {**CPU, "torch": "2.10.0", "mps_built": True, "mps_available": True}
XPU = {**CPU, "torch": "2.10.0+xpu", "xpu": "20250301"}
MI300 = {"name": "AMD Instinct MI300X", "capability": [9, 4], "uuid": None, "gcn": "gfx942:sramecc+:xnack-"}


def summary(finding: Finding) -> tuple[str, str | None]:
    return finding.level, finding.cause


def test_no_python(tmp_path: Path) -> None:
    named, no_python = case(tmp_path, python="/venv"), case(tmp_path)
    named.python = no_python.python = "", "there is no python3 on the PATH"
    no_python.torch = ProbeResult()

    assert (pytorch.python(named).level, pytorch.python(named).found) == ("failure", "there is no python3 on the PATH")
    assert pytorch.python(no_python).level == "skipped"
    assert pytorch.installation(no_python).level == "skipped"
    assert pytorch.obstacle(no_python) == "torch was not loaded"


@pytest.mark.parametrize(
    ("facts", "ending", "found"),
    [
        ({"missing": True}, "", "torch is not installed in this Python"),
        ({"missing": False, "import_error": "ImportError: libcudart.so.12"}, "", "ImportError: libcudart.so.12"),
        ({}, "was ended by SIGILL while importing torch", "the import was ended by SIGILL while importing torch"),
    ],
)
def test_no_torch(tmp_path: Path, facts: dict[str, Any], ending: str, found: str) -> None:
    finding = pytorch.installation(case(tmp_path, torch={"python": "3.12.1", **facts}, ending=ending, python="/venv"))

    assert (finding.level, finding.found) == ("failure", found)


@pytest.mark.parametrize("environ", [{}, {"VIRTUAL_ENV": "/venv"}, {"CONDA_PREFIX": "/conda"}])
def test_a_python_that_nobody_named_need_not_have_torch(tmp_path: Path, environ: dict[str, str]) -> None:
    finding = pytorch.installation(case(tmp_path, torch={"python": "3.12.1", "missing": True}, environ=environ))

    assert finding.level == ("failure" if environ else "skipped")
    assert environ or ("/venv/bin/python has no torch" == finding.found and "doctor --python PATH" in finding.advice)


@pytest.mark.parametrize(
    ("torch", "pci", "expected"),
    [
        (CPU, {"NVIDIA": 1}, ("failure", "no_cuda_build")),
        (CPU, {"AMD": 1}, ("failure", "no_cuda_build")),
        (CPU, {}, ("pass", None)),
        (CUDA, {"NVIDIA": 1}, ("pass", None)),
        (CUDA, {"AMD": 1}, ("failure", None)),
        (ROCM, {"AMD": 1}, ("pass", None)),
        (ROCM, {"NVIDIA": 1}, ("failure", None)),
        (MPS, {}, ("pass", None)),
        (XPU, {"Intel": 1}, ("pass", None)),
    ],
)
def test_build_and_devices(
    tmp_path: Path, torch: dict[str, Any], pci: dict[str, int], expected: tuple[str, str | None]
) -> None:
    assert summary(pytorch.build(case(tmp_path, NO_DRIVER, torch, pci=pci))) == expected


@pytest.mark.parametrize(("number", "version"), [(91002, "9.10.2"), (8902, "8.9.2"), (None, None)])
def test_cudnn(tmp_path: Path, number: int | None, version: str | None) -> None:
    found = pytorch.build(case(tmp_path, torch={**CUDA, "cudnn": number})).found

    assert found == "for CUDA 12.8" + (f", cuDNN {version}" if version else "")


def test_notes_on_other_builds(tmp_path: Path) -> None:
    rocm = pytorch.build(case(tmp_path, NO_DRIVER, ROCM, pci={"AMD": 1}))
    mps = pytorch.build(case(tmp_path, NO_DRIVER, MPS, pci={}, platform="darwin"))

    assert "torch.cuda means the AMD GPUs" in rocm.found
    assert "torch.cuda.is_available() is False there, the device is 'mps'" in mps.found


@pytest.mark.parametrize(
    ("cuda", "has", "available", "expected"),
    [
        ("12.8", 12080, True, ("pass", None)),
        ("11.8", 12080, True, ("pass", None)),
        ("12.8", 12020, False, ("pass", None)),  # the same major version
        ("13.0", 12080, False, ("failure", "driver_mismatch")),
        ("13.0", 12080, True, ("pass", None)),  # a compatibility package
        ("10.2", 10010, False, ("failure", "driver_mismatch")),  # before CUDA 11 each minor version counts
        ("12.8", None, False, ("skipped", None)),
    ],
)
def test_versions(
    tmp_path: Path, cuda: str, has: int | None, available: bool, expected: tuple[str, str | None]
) -> None:
    torch = {**CUDA, "cuda": cuda, "available": available}

    assert summary(pytorch.versions(case(tmp_path, driver(device(), cuda=has), torch))) == expected


def test_the_version_inside_the_process_takes_precedence(tmp_path: Path) -> None:
    torch = {**CUDA, "cuda": "13.0", "driver_cuda": 13000}

    assert pytorch.versions(case(tmp_path, driver(device(), cuda=12080), torch)).level == "pass"


def available(root: Path, facts: dict[str, Any], **how: Any) -> Finding:
    return pytorch.availability(case(root, torch=facts, **how))


def test_torch_with_its_devices(tmp_path: Path) -> None:
    finding = available(tmp_path, {**CUDA, "available": True, "devices": [H100, H100]})

    assert (finding.level, finding.found) == ("pass", "torch.cuda.is_available() is True: 2 x NVIDIA H100")


@pytest.mark.parametrize(
    ("facts", "environ", "cause"),
    [
        ({"error": "RuntimeError: no CUDA GPUs"}, {"CUDA_VISIBLE_DEVICES": ""}, "no_visible_device"),
        ({"cuda": "13.0", "error": "RuntimeError: driver too old"}, {}, "driver_mismatch"),
        ({"warnings": ["CUDA unknown error"]}, {}, None),
        ({}, {}, None),
    ],
)
def test_torch_without_devices(
    tmp_path: Path, facts: dict[str, Any], environ: dict[str, str], cause: str | None
) -> None:
    finding = available(tmp_path, {**CUDA, "available": False, **facts}, environ=environ)

    assert summary(finding) == ("failure", cause)
    assert finding.advice


def test_torch_that_hangs_while_opening_the_devices(tmp_path: Path) -> None:
    finding = available(tmp_path, CUDA, ending="did not answer within 60 s while opening CUDA")

    assert finding.found == "the Python did not answer within 60 s while opening CUDA"
    assert finding.level == "failure"


def test_simulated_devices_cannot_be_opened(tmp_path: Path) -> None:
    assert available(tmp_path, {**CUDA, "available": False}, simulation={}).level == "skipped"


def test_apple_gpu(tmp_path: Path) -> None:
    assert available(tmp_path, MPS).level == "pass"
    assert available(tmp_path, {**MPS, "mps_available": False}).level == "failure"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"architectures": ["sm_80", "sm_90"], "devices": [H100]}, ("pass", None)),
        ({"architectures": ["sm_70", "sm_80"], "devices": [H100]}, ("failure", "unsupported_arch")),
        ({"architectures": ["sm_70", "compute_80"], "devices": [H100]}, ("pass", None)),
        # Without devices from torch, those of the driver.
        ({"architectures": ["sm_70", "sm_80"]}, ("failure", "unsupported_arch")),
        ({"architectures": []}, ("skipped", None)),
        ({"architectures": ["gfx90a", "gfx942"], "devices": [MI300]}, ("pass", None)),
        ({"architectures": ["gfx90a"], "devices": [MI300]}, ("failure", "unsupported_arch")),
    ],
)
def test_architectures(tmp_path: Path, facts: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert summary(pytorch.architectures(case(tmp_path, torch={**CUDA, **facts}))) == expected


@pytest.mark.parametrize("check", [pytorch.build, pytorch.versions, pytorch.availability, pytorch.architectures])
@pytest.mark.parametrize("torch", [CPU, CUDA, ROCM, MPS, XPU])
def test_every_check_has_a_finding_without_driver_and_device(
    tmp_path: Path, check: Check, torch: dict[str, Any]
) -> None:
    (finding,) = findings(check, case(tmp_path, NO_DRIVER, {**torch, "available": False}, pci={}))

    assert finding.found
