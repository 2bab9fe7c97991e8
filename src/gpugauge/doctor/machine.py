"""The machine: GPUs, driver, device files, container, and what a process started from here may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpugauge.doctor import nodes
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.visibility import visible
from gpugauge.driver.api import Device
from gpugauge.status.driver_advice import ADVICE

# The last two are for AMD's GPUs; HIP heeds the first too.
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_GPU = "train on a machine with a GPU, or pass one through to this container or virtual machine"


def graphics_devices(case: Case) -> Finding:
    """What the PCI bus shows, against what the driver has."""
    title = "GPUs"
    if case.simulated:
        return skipped(title, "the GPUs are simulated")
    if case.platform == "darwin":
        return ok(title, "Apple's GPU; PyTorch uses it as the device mps")
    if case.subsystem:
        return ok(title, "WSL: Windows lends its GPUs (/dev/dxg)")
    there = case.pci.get("NVIDIA", 0)
    if not case.pci and not case.driver.devices:
        return failure(title, "the PCI bus shows no GPU", _NO_GPU)
    shown = ", ".join(f"{count} of {vendor}" for vendor, count in sorted(case.pci.items())) or "none on the PCI bus"
    if case.driver.facts and there > len(case.driver.devices) and not case.contained:
        has = f"{shown} on the PCI bus, and the driver has {len(case.driver.devices)}"
        return warning(
            title, has, "look for Xid 79 (fallen off the bus) in the kernel log; passed-through GPUs are lost too"
        )
    if not there and not case.driver.devices:
        if "AMD" in case.pci:
            return ok(title, f"{shown}: needs a ROCm build of PyTorch")
        return failure(title, f"{shown}, none that CUDA or ROCm can use", _NO_GPU)
    return ok(title, shown)


def driver(case: Case) -> Finding:
    """The driver and its library."""
    title = "NVIDIA driver"
    if not case.has_nvidia and (case.platform == "darwin" or "AMD" in case.pci):
        return skipped(title, "not needed: there is no GPU of NVIDIA's")
    facts = case.driver.facts
    if facts is None:
        reason = case.driver.reason
        return failure(
            title, f"not usable: {reason}", ADVICE.get(reason, "look for the NVIDIA driver in the kernel log")
        )
    if not case.driver.devices:
        return failure(title, f"{facts.driver_version}, but it has no GPU", ADVICE["gpu_not_found"])
    parts = [facts.driver_version or "of unknown version"]
    if facts.cuda_driver_version:
        parts.append(f"CUDA {cuda_version(facts.cuda_driver_version)}")
    return ok(title, ", ".join(parts))


def cuda_version(number: int) -> str:
    """Return 12.4 for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def devices(case: Case) -> Finding:
    """Which GPUs the driver has, and whether all answer."""
    title = "GPUs"
    if not case.driver.devices:
        return skipped(title, "the driver shows none")
    kinds = Counter(map(_kind, case.driver.up))
    found = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    lost = [f"GPU {device.reading.index}: {device.reason}" for device in case.driver.devices if not device.up]
    if lost:
        advice = "look for Xid errors in the kernel log (dmesg | grep Xid); reset the GPU (nvidia-smi -r) or reboot"
        return failure(title, "; ".join(filter(None, [*lost, found])), advice)
    return ok(title, found)


def _kind(device: Device) -> str:
    reading = device.reading
    parts = [reading.name or "unnamed"]
    if reading.memory_total_bytes:
        parts.append(f"{reading.memory_total_bytes / (1 << 30):.0f} GiB")
    if reading.compute_capability:
        parts.append("compute capability {}.{}".format(*reading.compute_capability))
    if reading.mig_mode:
        parts.append("MIG on")
    return ", ".join(parts)


def device_files(case: Case) -> Finding:
    """Whether this user may open what CUDA opens."""
    title = "Device files"
    if case.simulated or case.platform != "linux":
        return skipped(title, "the GPUs are simulated" if case.simulated else "only Linux has them")
    if case.subsystem:
        return skipped(title, "WSL has /dev/dxg for all GPUs")
    if case.driver.reason == "timeout" or any(device.reason == "hangs" for device in case.driver.devices):
        return skipped(title, "not opened: the driver hangs")
    found = nodes.device_files(case.root / "dev")
    names = {node.name for node in found}
    refused = [node for node in found if node.problem]
    if refused:
        listed = "; ".join(f"/dev/{node.name}: {node.problem}" for node in refused)
        return failure(title, listed, refused[0].advice)
    if not names:
        if not case.has_nvidia:
            return skipped(title, "none in /dev/nvidia*")
        return failure(title, "none in /dev/nvidia*", _how_to_give(case), cause="no_visible_device")
    if not names - {"nvidiactl", "nvidia-uvm"}:
        return failure(title, f"{_paths(names)}, but none of a GPU", _how_to_give(case), cause="no_visible_device")
    missing = {"nvidiactl", "nvidia-uvm"} - names
    if missing:
        return failure(title, f"{_paths(missing)} missing: CUDA cannot start", _how_to_give(case))
    return ok(title, f"all {len(names)} can be opened")


def _paths(names: set[str]) -> str:
    return ", ".join(f"/dev/{name}" for name in sorted(names))


def _how_to_give(case: Case) -> str:
    if case.contained:
        return "start the container with GPUs: docker run --gpus all, or the pod with a limit for nvidia.com/gpu"
    return "load the modules and make the files: modprobe nvidia nvidia-uvm; nvidia-modprobe -u -c=0"


def container(case: Case) -> Finding:
    """What the NVIDIA container runtime was asked for."""
    title = "Container"
    if not case.contained:
        return ok(title, "not in a container")
    asked = case.environ.get("NVIDIA_VISIBLE_DEVICES")
    capabilities = case.environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    said = "NVIDIA_VISIBLE_DEVICES is " + ("not set" if asked is None else repr(asked))
    # With CDI and with device plugins `void` is normal, so the value alone is no finding.
    if case.has_nvidia and not case.driver.devices and asked in {None, "", "void", "none"}:
        return failure(title, f"{said}, and there is no GPU", _how_to_give(case), cause="no_visible_device")
    if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
        advice = "set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return failure(
            title, f"NVIDIA_DRIVER_CAPABILITIES is {capabilities!r}: without compute there is no CUDA", advice
        )
    return ok(title, said)


def visible_devices(case: Case) -> Finding:
    """What CUDA_VISIBLE_DEVICES leaves to a program that is started from this terminal."""
    title = "Visible to CUDA"
    value = case.environ.get("CUDA_VISIBLE_DEVICES")
    said = "CUDA_VISIBLE_DEVICES is " + ("not set" if value is None else repr(value))
    if not case.driver.devices:
        hiding = [name for name in _HIDING if case.environ.get(name, "0").strip() in {"", "-1"}]
        if hiding:
            return failure(title, f"{hiding[0]} hides every GPU", cause="no_visible_device")
        return skipped(title, f"{said}; there is no GPU of NVIDIA's to show")
    names = [[device.uuid, *(mig.uuid for mig in device.reading.mig_instances or ())] for device in case.driver.devices]
    shown, problem = visible(value, names)
    if not shown:
        return failure(title, f"{said}: {problem}", cause="no_visible_device")
    found = f"{said}: {_numbered(shown, len(names))}"
    if problem:
        return warning(title, f"{found}; {problem}", "check the list against nvidia-smi -L")
    if _order_matters(value, case):
        advice = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by uuid"
        return warning(title, f"{found}; CUDA counts the fastest GPU first, nvidia-smi does not", advice)
    return ok(title, found)


def _numbered(shown: Sequence[int], count: int) -> str:
    if len(set(shown)) == count:
        return f"all {count} GPUs" if count > 1 else "the only GPU"
    return ("GPUs " if len(set(shown)) > 1 else "GPU ") + ", ".join(map(str, dict.fromkeys(shown)))


def _order_matters(value: str | None, case: Case) -> bool:
    by_number = value is not None and any(entry.strip().isdigit() for entry in value.split(","))
    kinds = {device.reading.name for device in case.driver.devices}
    return by_number and len(kinds) > 1 and case.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
