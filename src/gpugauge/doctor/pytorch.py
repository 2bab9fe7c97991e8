"""Checks of the examined Python and its torch: its build, and whether it can use the GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.machine import cuda_version, visible_devices
from gpugauge.verdict.cuda_arch import arch_supported

_INSTALL_ADVICE = "install a build for these GPUs: https://pytorch.org/get-started/locally"


_NAME_IT = "name the Python of the training: gpugauge doctor --python PATH"


def python(case: Case) -> Finding:
    """Show the examined Python."""
    title = "Python"
    path, problem = case.python
    if not path and not case.names_python:
        return skipped(title, problem, _NAME_IT)
    if not path:
        return failure(title, problem, "name the Python that trains: --python PATH")
    version = case.torch.facts.get("python")
    if not version:
        return failure(title, f"{path} {case.torch.ending}", "name another Python: --python PATH")
    return ok(title, f"{version}, {path}")


def installation(case: Case) -> Finding:
    """Check that torch can be imported."""
    title = "PyTorch"
    facts = case.torch.facts
    if "python" not in facts:
        return skipped(title, "there is no Python to examine")
    if "torch" in facts:
        return ok(title, f"{facts['torch']}, {facts['file'].removesuffix('/__init__.py')}")
    if facts.get("missing") and not case.names_python:
        return skipped(title, f"{case.python[0]} has no torch", _NAME_IT)
    if facts.get("missing"):
        advice = "activate the environment of the training, or name its Python: --python PATH"
        return failure(title, "torch is not installed in this Python", advice)
    return failure(title, facts.get("import_error") or f"the import {case.torch.ending}", "reinstall torch")


def obstacle(case: Case) -> str:
    """Return why torch cannot be examined, or ""."""
    return "" if case.build else "torch was not loaded"


def build(case: Case) -> Finding:
    """Compare the platform that torch was built for with the GPUs."""
    title, kind, facts = "Build", case.build, case.torch.facts
    if kind == "rocm":
        if case.has_nvidia and not case.has_amd:
            return failure(title, f"for ROCm {facts['hip']} (AMD), but the GPUs are from NVIDIA", _INSTALL_ADVICE)
        # https://docs.pytorch.org/docs/stable/notes/hip.html
        note = "torch.cuda means the AMD GPUs"
        return ok(title, f"for ROCm {facts['hip']}: {note}")
    if kind == "mps":
        return ok(title, "for Apple GPUs: torch.cuda.is_available() is False there, the device is 'mps'")
    if kind == "xpu":
        return ok(title, f"for Intel GPUs (XPU {facts['xpu']}): torch.cuda finds no GPU there, the device is 'xpu'")
    if kind == "cpu":
        return _cpu_build(case, title)
    if case.has_amd and not case.has_nvidia:
        return failure(title, f"for CUDA {facts['cuda']}, but the GPUs are from AMD", _INSTALL_ADVICE)
    return ok(title, f"for CUDA {facts['cuda']}" + (f", cuDNN {_cudnn(facts['cudnn'])}" if facts.get("cudnn") else ""))


def _cudnn(number: int) -> str:
    """Return 9.10.2 for 91002, and 8.9.2 for 8902: the encoding changed with version 9."""
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _cpu_build(case: Case, title: str) -> Finding:
    if case.has_gpu:
        return failure(title, "for the CPU only, but there is a GPU", cause="no_cuda_build")
    if case.is_bare:
        return ok(title, "for the CPU only, as this machine needs it")
    return warning(title, "for the CPU only; there is no GPU either")


def versions(case: Case) -> Finding:
    """Compare the CUDA version of torch's build with the newest version that the driver supports."""
    title = "CUDA versions"
    if case.build != "cuda":
        return skipped(title, "torch is not a CUDA build")
    number = _driver_cuda(case)
    if number is None:
        return skipped(title, "the driver does not report its version")
    built, supported = _version(case.torch.facts["cuda"]), _version(cuda_version(number))
    found = f"torch was built with CUDA {case.torch.facts['cuda']}, the driver supports up to {cuda_version(number)}"
    if built <= supported:
        return ok(title, found)
    # Since CUDA 11 an older driver of the same major version is sufficient.
    # https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    if built[0] == supported[0] >= 11:
        return ok(title, f"{found}: the same major version is sufficient")
    if case.torch.facts.get("available"):
        return ok(title, f"{found}: it works through a compatibility package")
    return failure(title, found, cause="driver_mismatch")


def _driver_cuda(case: Case) -> int | None:
    facts = case.driver.facts
    from_driver = facts.cuda_driver_version if facts else None
    # The version from libcuda in the examined process takes precedence: it may be that of a compatibility package.
    return from_driver if case.simulated else case.torch.facts.get("driver_cuda") or from_driver


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def availability(case: Case) -> Finding:
    """Check that torch can open the GPUs."""
    title, facts, kind = "GPU in PyTorch", case.torch.facts, case.build
    if kind in {"cpu", "xpu"}:
        return skipped(title, "a CPU build uses no GPU" if kind == "cpu" else "gpugauge does not check Intel GPUs")
    if kind == "mps":
        if facts.get("mps_available"):
            return ok(title, "torch.backends.mps.is_available() is True")
        advice = "MPS needs macOS 12.3 or newer and an Apple or AMD GPU"
        return failure(title, "torch.backends.mps.is_available() is False", advice)
    if case.simulated:
        return skipped(title, "the GPUs are simulated: torch cannot use them")
    if case.is_bare:
        return skipped(title, "there is no GPU here")
    if "available" not in facts:
        advice = case.vendor.fill("check the kernel log ({failures}); find the faulty GPU with {visibility}=0, 1 …")
        return failure(title, f"the Python {case.torch.ending}", advice)
    if not facts["available"]:
        return _unavailable(case, title)
    names = Counter(device["name"] for device in facts.get("devices", ()))
    listed = "; ".join(f"{count} x {name}" for name, count in names.items())
    if case.torch.ending:
        return warning(title, f"available, but then the Python {case.torch.ending}")
    return ok(title, f"torch.cuda.is_available() is True: {listed}")


def _unavailable(case: Case, title: str) -> Finding:
    facts = case.torch.facts
    reasons = [facts.get("error"), *(facts.get("warnings") or ())]
    first = next((reason for reason in reasons if reason), "torch gives no reason")
    found = f"torch.cuda.is_available() is False: {first}"
    for check in (visible_devices, versions):
        other = check(case)
        if other.cause:
            return failure(title, found, cause=other.cause)
    if case.build in {"cuda", "rocm"} and not case.driver.devices:
        return failure(title, found, "first repair the driver, see above")
    return failure(title, found, case.vendor.fill("check the device files above, and the kernel log ({log})"))


def architectures(case: Case) -> Finding:
    """Check that the build has code for the GPUs."""
    title, listed = "Architectures", case.torch.facts.get("architectures") or []
    if not listed:
        return skipped(title, "torch reports none")
    devices = case.torch.facts.get("devices") or _from_driver(case)
    if not devices:
        return skipped(title, f"built for {' '.join(listed)}; there is no GPU to compare with")
    unsupported = [_named(device) for device in devices if _supported(listed, device) is False]
    if unsupported:
        return failure(
            title,
            f"no code for {', '.join(dict.fromkeys(unsupported))} in {' '.join(listed)}",
            cause="unsupported_arch",
        )
    return ok(title, f"{' '.join(listed)}: runs on {', '.join(dict.fromkeys(map(_named, devices)))}")


def _from_driver(case: Case) -> list[Mapping[str, Any]]:
    readings = [device.reading for device in case.driver.up]
    return [
        {"name": r.name, "capability": r.compute_capability, "gcn": r.value("gfx_target")}
        for r in readings
        if r.compute_capability
    ]


def _supported(listed: list[str], device: Mapping[str, Any]) -> bool | None:
    if device.get("gcn"):
        return device["gcn"].split(":")[0] in listed  # gfx90a:sramecc+:xnack-
    major, minor = device["capability"]
    return arch_supported(listed, (major, minor))


def _named(device: Mapping[str, Any]) -> str:
    architecture = device.get("gcn") or "compute capability {}.{}".format(*device["capability"])
    return f"{device['name']} ({architecture})"
