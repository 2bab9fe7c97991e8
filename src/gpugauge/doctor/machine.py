"""Checks of the machine: GPUs, driver, device files, container, and the GPUs visible to a process started here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from gpugauge.doctor import nodes
from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.gpus import advice_on, name_of
from gpugauge.driver.advice import advice, known_advice
from gpugauge.driver.api import Device
from gpugauge.driver.bus import pci_address, text
from gpugauge.driver.vendors import VENDORS
from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.faults.repair import ANY_SITE


def visible(value: str | None, names: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], str]:
    """Return the indexes of the visible GPUs, and the problem of the value or "". `names` holds for each GPU its uuid
    and those of its MIG devices.

    The list ends at the first entry that identifies no GPU. A repeated entry hides all GPUs.
    https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    if value is None:
        return tuple(range(len(names))), ""
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return (), "the value is empty, which hides every GPU"
    found: list[int] = []
    for entry in entries:
        index = _device(entry, names)
        if index is None:
            return tuple(found), _problem(entry, len(names), found)
        found.append(index)
    if len(set(entries)) < len(entries):
        return (), "a GPU is listed twice, which hides every GPU"
    return tuple(found), ""


def _device(entry: str, names: Sequence[Sequence[str]]) -> int | None:
    if entry.isascii() and entry.isdigit():
        return int(entry) if int(entry) < len(names) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matching = {index for index, own in enumerate(names) if any(name.startswith(entry) for name in own)}
    return matching.pop() if len(matching) == 1 else None


def _problem(entry: str, count: int, found: list[int]) -> str:
    problem = f"{entry!r} identifies no GPU" if entry else "an entry is empty"
    total = f" (there are {count})" if entry.isdigit() else ""
    return f"{problem}{total}, which hides " + ("this and all later entries" if found else "every GPU")


# The last two are for AMD GPUs; HIP also reads the first.
_VISIBILITY_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_GPU_ADVICE = "use a machine with a GPU, or pass a GPU through to this container or virtual machine"
_TORCH_ALONE = "PyTorch has a GPU that NVML does not know, as on a Jetson: gpugauge cannot read it"
_EXPECTED = "nothing is wrong if none was expected; otherwise"


def graphics_devices(case: Case) -> Finding:
    """Compare the GPUs on the PCI bus with those of the driver."""
    title = "GPU hardware"
    if case.simulated:
        return skipped(title, "the GPUs are simulated")
    if case.platform == "darwin":
        return ok(title, "an Apple GPU; PyTorch uses it as the device mps")
    if case.is_wsl:
        return ok(title, "WSL: the GPUs of Windows, through /dev/dxg")
    if case.trains_without_gpu:
        return skipped(title, "there is no GPU here: programs train on the CPU")
    if case.by_torch_alone:
        return ok(title, _TORCH_ALONE)
    if case.is_bare:
        others = f" ({_shown(case)})" if case.pci else ""
        found = f"none on the PCI bus or in /dev that CUDA or ROCm could use{others}; programs train on the CPU"
        return warning(title, found, _if_expected(case))
    on_bus = sum(len(case.pci.get(vendor.name, ())) for vendor in VENDORS)
    return _compared(case, title, on_bus, len(case.driver.devices))


def _compared(case: Case, title: str, on_bus: int, known: int) -> Finding:
    shown = _shown(case)
    # Where the driver hangs, opening a device file may hang as well.
    others = len(nodes.of_others([] if case.driver.hangs else case.device_files)) if known and on_bus > known else 0
    if others and on_bus <= known + others:
        return ok(title, f"{shown} on the PCI bus, {known} for this job: its cgroup denies the others")
    if case.driver.facts and on_bus > known and not case.in_container:
        found = f"{shown} on the PCI bus, but the driver has {known}"
        if missing := _missing(case):
            found += f"; it lacks {', '.join(missing)}"
        advice = (
            "check the kernel log ({failures}); the driver also lacks GPUs that are passed through to a virtual machine"
        )
        return warning(title, found, case.vendor.fill(advice))
    if known and not on_bus:  # a sandbox without the bus
        return ok(title, f"{known} x {case.vendor.name} by the driver; {shown or 'no GPU'} on the PCI bus")
    if on_bus:
        return ok(title, shown)
    found = f"{shown}, not usable by CUDA or ROCm" if shown else "no GPU on the PCI bus"
    return failure(title, found, _NO_GPU_ADVICE)


def _shown(case: Case) -> str:
    return ", ".join(f"{len(found)} x {vendor}" for vendor, found in sorted(case.pci.items()))


def _if_expected(case: Case) -> str:
    if case.in_container:
        return f"{_EXPECTED} {_device_file_advice(case)}"
    return f"{_EXPECTED} look for it with lspci; a virtual machine needs it passed through"


def _missing(case: Case) -> list[str]:
    """Return the addresses of the GPUs on the PCI bus that no driver has."""
    places = [device.reading.pci_bus_id for device in case.driver.devices]
    if None in places:
        return []
    known = {pci_address(place) for place in places if place}
    return [at for vendor in VENDORS for at in case.pci.get(vendor.name, ()) if at not in known]


def driver(case: Case) -> Finding:
    """Check the driver and its library."""
    title, nothing = f"{case.vendor.name} driver", f"not needed: there is no {case.vendor.name} GPU"
    if not (case.has_nvidia or case.has_amd) and (case.platform == "darwin" or case.trains_without_gpu):
        return skipped(title, nothing)
    if case.is_bare:
        return skipped(title, f"not installed, and {nothing}")
    if case.by_torch_alone:
        return skipped(title, _TORCH_ALONE)
    facts = case.driver.facts
    if facts is None:
        reason = case.driver.reason
        known = known_advice(reason, case.vendor) or case.vendor.fill("check the kernel log ({log})")
        outside = reason == "library_not_found" and nodes.in_apptainer(case.environ, case.root)
        return failure(title, f"not usable: {reason}", _device_file_advice(case) if outside else known)
    if not case.driver.devices:
        return failure(title, f"{facts.driver_version}, but it finds no GPU", advice("gpu_not_found", case.vendor))
    parts = [case.vendor.fill("{module}") + (facts.driver_version or "unknown version")]
    if case.vendor is AMD and not case.simulated and (rocm := text(case.root / "opt/rocm/.info/version")):
        parts.append(f"ROCm {rocm}")
    if facts.cuda_driver_version:
        parts.append(f"CUDA {cuda_version(facts.cuda_driver_version)}")
    return ok(title, ", ".join(parts))


def cuda_version(number: int) -> str:
    """Return 12.4 for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def of_daemon(case: Case) -> str:
    """Return the GPUs of the daemon in words if only it has some, else ""."""
    named = Counter(gpu.name or gpu.uuid for gpu in case.gpus if case.by_daemon_alone)
    return ", ".join(f"{count} x {name}" for name, count in named.items()) + " of the daemon" if named else ""


def on_its_machine(case: Case) -> str:
    """Return where GPUs are checked that only the daemon has."""
    if case.reported is None or case.reported.simulated:
        return "nothing: they are simulated"
    return f"check them where they are: ssh {case.reported.host} gpugauge doctor"


def devices(case: Case) -> Sequence[Finding]:
    """List the GPUs of the driver; a failure for each one that cannot be read."""
    title = "GPUs"
    if not case.driver.devices:
        return [skipped(title, "the driver reports none")]
    kinds = Counter(map(_kind, case.driver.up))
    found = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    working = [ok(title, found)] if found else []
    # The faults below have those that the daemon lists.
    down = {uuid for problem in case.gpu_problems if problem.kind == "gpu_down" for uuid in problem.gpus}
    listed = {key for gpu in case.gpus if gpu.uuid in down for key in (gpu.uuid, gpu.index)}
    unread = [d for d in case.driver.devices if not d.up and not listed.intersection((d.uuid, d.reading.index))]
    return [*map(_unread, unread), *working] or [skipped(title, "none answers")]


def _unread(device: Device) -> Finding:
    place = device.reading.pci_bus_id
    at = f", PCI bus {place}" if place else ""
    return failure(
        "GPUs", f"{name_of(device)}: {device.reason}{at}", ANY_SITE.fill(next(iter(advice_on(device))), device.uuid)
    )


def _kind(device: Device) -> str:
    reading = device.reading
    parts = [reading.name or "unknown product"]
    if reading.memory_total_bytes:
        parts.append(f"{reading.memory_total_bytes / (1 << 30):.0f} GiB")
    if target := reading.value("gfx_target"):
        parts.append(str(target))
    elif reading.compute_capability:
        parts.append("compute capability {}.{}".format(*reading.compute_capability))
    if reading.mig_mode:
        parts.append("MIG on")
    return ", ".join(parts)


def device_files(case: Case) -> Sequence[Finding]:
    """Check whether this user may open the device files that CUDA or ROCm opens."""
    both = [cuda_files(case)] if case.has_nvidia or not case.has_amd or case.simulated else []
    return [*both, rocm_files(case)] if "AMD" in case.pci else both


def cuda_files(case: Case) -> Finding:
    """Check the access to the device files that CUDA opens."""
    title = "Device files"
    if case.simulated or case.platform != "linux":
        return skipped(title, "the GPUs are simulated" if case.simulated else "only on Linux")
    if case.is_wsl:
        return skipped(title, "WSL uses /dev/dxg for all GPUs")
    if case.trains_without_gpu or case.is_bare:
        return skipped(title, "there is no GPU here")
    if case.driver.hangs:
        return skipped(title, "not opened: the driver hangs")
    return _opened(case, title, case.device_files)


def rocm_files(case: Case) -> Finding:
    """Check the access to the device files of ROCm, without opening them: that would count as a process on each GPU."""
    title, dev = "Device files", case.root / "dev"
    control, gpus = dev / "kfd", sorted(dev.glob("dri/renderD*"))
    missing = [] if control.exists() else ["/dev/kfd"]
    missing += [] if gpus else ["/dev/dri/renderD*"]
    if missing:
        advice = "docker run --device /dev/kfd --device /dev/dri, or the pod with a limit for amd.com/gpu"
        advice = advice if case.in_container else "modprobe amdgpu, and see the kernel log (dmesg | grep -i amdgpu)"
        return failure(title, f"there is no {' and no '.join(missing)}", advice, cause="no_visible_device")
    denied = [path.name for path in (control, *gpus) if not os.access(path, os.R_OK | os.W_OK)]
    if control.name in denied or len(denied) == len(gpus):
        advice = "add this user to the groups of the files (usermod -aG render,video USER), and log in again"
        return failure(title, f"this user may not open {', '.join(denied)}", advice, cause="no_visible_device")
    override = case.environ.get("HSA_OVERRIDE_GFX_VERSION")
    if override:
        advice = "unset it, unless the build of torch has no code for the GPU: another architecture may crash"
        return warning(title, f"HSA_OVERRIDE_GFX_VERSION is {override!r}: ROCm takes the GPU for another one", advice)
    return ok(title, f"/dev/kfd and {len(gpus) - len(denied)} of {len(gpus)} GPUs can be opened")


def _opened(case: Case, title: str, found: Sequence[nodes.Node]) -> Finding:
    names = {node.name for node in found}
    others = nodes.of_others(found) if case.driver.devices else []
    denied = [node for node in found if node.problem and node not in others]
    if denied:
        listed = "; ".join(f"/dev/{node.name}: {node.problem}" for node in denied)
        return failure(title, listed, denied[0].advice)
    if not names:
        if not case.has_nvidia:
            return skipped(title, "there is no /dev/nvidia*")
        return failure(title, "there is no /dev/nvidia*", _device_file_advice(case), cause="no_visible_device")
    if not names - {"nvidiactl", "nvidia-uvm"}:
        found_text = f"{_paths(names)}, but no file of a GPU"
        return failure(title, found_text, _device_file_advice(case), cause="no_visible_device")
    missing = {"nvidiactl", "nvidia-uvm"} - names
    if missing:
        return failure(title, f"{_paths(missing)} missing: CUDA cannot start", _device_file_advice(case))
    if others:
        return ok(
            title, f"{len(names) - len(others)} can be opened; the cgroup denies those of {len(others)} other GPUs"
        )
    return ok(title, f"all {len(names)} can be opened")


def _paths(names: set[str]) -> str:
    return ", ".join(f"/dev/{name}" for name in sorted(names))


def _device_file_advice(case: Case) -> str:
    if nodes.in_apptainer(case.environ, case.root):
        return "start the container with --nv: apptainer exec --nv …"
    if case.in_container:
        return "start the container with GPUs: docker run --gpus all, or the pod with a limit for nvidia.com/gpu"
    return "load the modules and create the files: modprobe nvidia nvidia-uvm; nvidia-modprobe -u -c=0"


def container(case: Case) -> Finding:
    """Check the variables of the NVIDIA container runtime."""
    title = "Container"
    if not case.in_container:
        return ok(title, "not in a container")
    if case.vendor is AMD:
        return ok(title, "in a container; the device files of its GPUs are checked above")
    requested = case.environ.get("NVIDIA_VISIBLE_DEVICES")
    capabilities = case.environ.get("NVIDIA_DRIVER_CAPABILITIES", "")
    setting = "NVIDIA_VISIBLE_DEVICES is " + ("not set" if requested is None else repr(requested))
    # `void` is normal with CDI and device plugins, so the value alone is no finding.
    if case.has_nvidia and not case.driver.devices and requested in {None, "", "void", "none"}:
        found = f"{setting}, and there is no GPU"
        return failure(title, found, _device_file_advice(case), cause="no_visible_device")
    if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
        advice = "set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return failure(title, f"NVIDIA_DRIVER_CAPABILITIES is {capabilities!r}: CUDA needs compute", advice)
    return ok(title, setting)


def visible_devices(case: Case) -> Finding:
    """Check which GPUs the environment leaves to a program that is started from this terminal."""
    title = case.vendor.fill("Visible to {toolkit}")
    lists = _lists(case)
    given = [f"{name} is {value!r}" for name, value in lists.items() if value is not None]
    setting = " and ".join(given) or f"{' and '.join(lists)} {'is' if len(lists) == 1 else 'are'} not set"
    if not case.driver.devices:
        hiding = [name for name in _VISIBILITY_VARIABLES if case.environ.get(name, "0").strip() in {"", "-1"}]
        if hiding and not case.is_bare:
            return failure(title, f"{hiding[0]} hides every GPU", cause="no_visible_device")
        return skipped(title, f"{setting}; there is no {case.vendor.name} GPU")
    names = [[device.uuid, *(mig.uuid for mig in device.reading.mig_instances or ())] for device in case.driver.devices]
    shown, problem = tuple(range(len(names))), ""
    for value in lists.values():  # each list counts within the one before
        inside, wrong = visible(value, [names[index] for index in shown])
        shown, problem = tuple(shown[index] for index in inside), problem or wrong
    if not shown:
        return failure(title, f"{setting}: {problem}", cause="no_visible_device")
    found = f"{setting}: {_numbered(shown, len(names))}"
    if problem:
        return warning(title, f"{found}; {problem}", case.vendor.fill("compare the list with {list}"))
    if _order_matters(lists.get("CUDA_VISIBLE_DEVICES"), case):
        advice = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by uuid"
        return warning(title, f"{found}; CUDA numbers the fastest GPU first, {case.vendor.tool} does not", advice)
    return ok(title, found)


def _lists(case: Case) -> dict[str, str | None]:
    """Return the variables that hide GPUs, in their order. HIP reads that of CUDA if its own is not set, and ignores an
    empty list.
    """
    if case.vendor is not AMD:
        return {"CUDA_VISIBLE_DEVICES": case.environ.get("CUDA_VISIBLE_DEVICES")}
    hip = "HIP_VISIBLE_DEVICES"
    name = hip if case.environ.get(hip) or not case.environ.get("CUDA_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    return {"ROCR_VISIBLE_DEVICES": case.environ.get("ROCR_VISIBLE_DEVICES"), name: case.environ.get(name) or None}


def _numbered(shown: Sequence[int], count: int) -> str:
    if len(set(shown)) == count:
        return f"all {count} GPUs" if count > 1 else "the only GPU"
    return ("GPUs " if len(set(shown)) > 1 else "GPU ") + ", ".join(map(str, dict.fromkeys(shown)))


def _order_matters(value: str | None, case: Case) -> bool:
    by_number = value is not None and any(entry.strip().isdigit() for entry in value.split(","))
    kinds = {device.reading.name for device in case.driver.devices}
    return (
        by_number and case.vendor is NVIDIA and len(kinds) > 1 and case.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    )
