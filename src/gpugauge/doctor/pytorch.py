"""The Python that trains and its torch: what it was built for, and whether it can use these GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.machine import cuda_version, visible_devices
from gpugauge.verdict.cuda_arch import arch_supported

_GET = "install a build for these GPUs: https://pytorch.org/get-started/locally"


def python(case: Case) -> Finding:
    """Which Python is asked."""
    title = "Python"
    path, problem = case.python
    if not path:
        return failure(title, problem, "name the one that trains: --python PATH")
    version = case.torch.facts.get("python")
    if not version:
        return failure(title, f"{path} {case.torch.ending}", "name another one: --python PATH")
    return ok(title, f"{version}, {path}")


def installation(case: Case) -> Finding:
    """Whether torch can be imported."""
    title = "PyTorch"
    facts = case.torch.facts
    if "python" not in facts:
        return skipped(title, "there is no Python to ask")
    if "torch" in facts:
        return ok(title, f"{facts['torch']}, {facts['file'].removesuffix('/__init__.py')}")
    if facts.get("missing"):
        advice = "activate the environment that trains, or name its Python: --python PATH"
        return failure(title, "this Python has no torch", advice)
    return failure(title, facts.get("import_error") or f"the import {case.torch.ending}", "install torch anew")


def obstacle(case: Case) -> str:
    """Return why torch cannot be asked; empty when it can."""
    return "" if case.build else "torch was not loaded"


def build(case: Case) -> Finding:
    """What torch was built for, against what is there."""
    title, kind, facts = "Build", case.build, case.torch.facts
    if kind == "rocm":
        if case.has_nvidia and "AMD" not in case.pci:
            return failure(title, f"for ROCm {facts['hip']} (AMD), and the GPUs are NVIDIA's", _GET)
        # https://docs.pytorch.org/docs/stable/notes/hip.html
        true_there = "torch.cuda means the AMD GPUs; gpugauge reads no counters of theirs, rocm-smi does"
        return ok(title, f"for ROCm {facts['hip']}: {true_there}")
    if kind == "mps":
        return ok(title, "for Apple's GPU: torch.cuda.is_available() is False there, the device is 'mps'")
    if kind == "xpu":
        return ok(title, f"for Intel's GPUs (XPU {facts['xpu']}): torch.cuda finds nothing there, the device is 'xpu'")
    if kind == "cpu":
        return _cpu_build(case, title)
    if "AMD" in case.pci and not case.has_nvidia:
        return failure(title, f"for CUDA {facts['cuda']}, and the GPUs are AMD's", _GET)
    return ok(title, f"for CUDA {facts['cuda']}" + (f", cuDNN {_cudnn(facts['cudnn'])}" if facts.get("cudnn") else ""))


def _cudnn(number: int) -> str:
    """Return 9.10.2 for 91002, and 8.9.2 for 8902: the number's make-up changed with version 9."""
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _cpu_build(case: Case, title: str) -> Finding:
    if case.has_nvidia or "AMD" in case.pci:
        return failure(title, "for the CPU only, and there is a GPU", cause="no_cuda_build")
    return warning(title, "for the CPU only; there is no GPU either")


def versions(case: Case) -> Finding:
    """The CUDA that torch was built with, against the newest that the driver can run."""
    title = "CUDA versions"
    if case.build != "cuda":
        return skipped(title, "torch is no CUDA build")
    number = _driver_cuda(case)
    if number is None:
        return skipped(title, "the driver does not tell its version")
    built, has = _version(case.torch.facts["cuda"]), _version(cuda_version(number))
    said = f"torch was built with CUDA {case.torch.facts['cuda']}, the driver runs up to {cuda_version(number)}"
    if built <= has:
        return ok(title, said)
    # Within a major version an older driver will do, since CUDA 11.
    # https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    if built[0] == has[0] >= 11:
        return ok(title, f"{said}: the same major version will do")
    if case.torch.facts.get("available"):
        return ok(title, f"{said}: it works through a compatibility package")
    return failure(title, said, cause="driver_mismatch")


def _driver_cuda(case: Case) -> int | None:
    facts = case.driver.facts
    asked = facts.cuda_driver_version if facts else None
    # What libcuda says inside that process counts: a compatibility package may be in its way.
    return asked if case.simulated else case.torch.facts.get("driver_cuda") or asked


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def availability(case: Case) -> Finding:
    """Whether torch itself opens the GPUs."""
    title, facts, kind = "GPU in PyTorch", case.torch.facts, case.build
    if kind in {"cpu", "xpu"}:
        return skipped(title, "a CPU build uses none" if kind == "cpu" else "gpugauge does not ask Intel's GPUs")
    if kind == "mps":
        if facts.get("mps_available"):
            return ok(title, "torch.backends.mps.is_available() is True")
        return failure(
            title, "torch.backends.mps.is_available() is False", "MPS needs macOS 12.3 and a GPU of Apple's or AMD's"
        )
    if case.simulated:
        return skipped(title, "the GPUs are simulated: torch cannot see them")
    if "available" not in facts:
        advice = "look for Xid errors in the kernel log; try with CUDA_VISIBLE_DEVICES=0, 1 … to find the GPU"
        return failure(title, f"the Python {case.torch.ending}", advice)
    if not facts["available"]:
        return _unavailable(case, title)
    names = Counter(device["name"] for device in facts.get("devices", ()))
    listed = "; ".join(f"{count} x {name}" for name, count in names.items())
    if case.torch.ending:
        return warning(title, f"available, then the Python {case.torch.ending}")
    return ok(title, f"torch.cuda.is_available() is True: {listed}")


def _unavailable(case: Case, title: str) -> Finding:
    facts = case.torch.facts
    reasons = [facts.get("error"), *(facts.get("warnings") or ())]
    why = next((reason for reason in reasons if reason), "it gives no reason")
    found = f"torch.cuda.is_available() is False: {why}"
    for check in (visible_devices, versions):
        other = check(case)
        if other.cause:
            return failure(title, found, cause=other.cause)
    if case.build == "cuda" and not case.driver.devices:
        return failure(title, found, "first make the driver work, see above")
    return failure(title, found, "look at the device files above, and for NVIDIA's messages in the kernel log (dmesg)")


def architectures(case: Case) -> Finding:
    """Whether the build holds code for the GPUs."""
    title, listed = "Architectures", case.torch.facts.get("architectures") or []
    if not listed:
        return skipped(title, "torch names none")
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
    return [{"name": r.name, "capability": r.compute_capability} for r in readings if r.compute_capability]


def _supported(listed: list[str], device: Mapping[str, Any]) -> bool | None:
    if device.get("gcn"):
        return device["gcn"].split(":")[0] in listed  # gfx90a:sramecc+:xnack-
    major, minor = device["capability"]
    return arch_supported(listed, (major, minor))


def _named(device: Mapping[str, Any]) -> str:
    what = device.get("gcn") or "compute capability {}.{}".format(*device["capability"])
    return f"{device['name']} ({what})"
