"""Checks of the condition of the GPUs that are up: modes, errors, clocks, PCIe link, use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpugauge.doctor.case import OF_GPU, Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.gpus import computing, name_of
from gpugauge.driver import codes
from gpugauge.driver.api import Device
from gpugauge.faults.repair import SEE
from gpugauge.terminal.rows import problem_words

# Codes of a call that should have worked. Others: a library that is too old, a value that this GPU or this user
# does not have.
_FAULTS = codes.CODES - codes.UNSUPPORTED - {codes.IMPLAUSIBLE, codes.INVALID_ARGUMENT}
_FAULTS -= {codes.NO_PERMISSION, codes.NOT_FOUND}
_LOWERED_POWER_LIMIT_RATIO = 0.95  # of the default limit; a lower limit was set on purpose
_UNUSED_MEMORY_GIB = 1.0  # drivers and desktops hold less
_MAX_SHOWN_PIDS = 4


def obstacle(case: Case) -> str:
    """Return why the condition cannot be checked, or ""."""
    return "" if case.own[1] else "no GPU answers"


def unknown(case: Case) -> str:
    """Return why nothing is known of the faults of GPUs, or ""."""
    return "" if case.gpus or case.gpu_problems else "no GPU answers"


def modes(case: Case) -> Sequence[Finding]:
    """Check for modes that prevent all computation."""
    return [f for device in case.own[1] for f in _modes(device)] or [ok("Modes", "every GPU allows computation")]


def _modes(device: Device) -> Iterator[Finding]:
    reading, name = device.reading, name_of(device)
    if reading.compute_mode == "prohibited":
        advice = device.vendor.fill("{compute}", reading.index)
        yield failure("Modes", f"{name}: the compute mode is Prohibited", advice)
    if reading.mig_mode and reading.mig_instances == ():
        advice = device.vendor.fill("{divide}", reading.index)
        yield failure("Modes", f"{name}: MIG is on and there is no MIG device", advice, "no_visible_device")


def health(case: Case) -> Sequence[Finding]:
    """List the faults of the GPUs but those of clocks and links."""
    apart = {"gpu_slowed", "narrow_link"}
    found = _listed(case, OF_GPU - {"repair"} - apart, "Faults")
    count = "no other" if any(problem.kind in apart for problem in case.gpu_problems) else "none"
    return found or [ok("Faults", f"the {'daemon' if case.reported else 'driver'} reports {count}{_where(case)}")]


def _listed(case: Case, kinds: Collection[str], title: str, cause: str | None = None) -> list[Finding]:
    """Return the problems of some kinds in the words of the daemon, with its advice: one line for each GPU."""
    found = [problem for problem in case.gpu_problems if problem.kind in kinds]
    repair = SEE if any(problem.steps for problem in case.gpu_problems) else ""
    return [(failure if p.grave else warning)(title, problem_words(p), p.advice or repair, cause) for p in found]


def values(case: Case) -> Sequence[Finding]:
    """Check for values that the driver failed to read."""
    found = [finding for device in case.own[1] for finding in _unread(case, device)]
    return found or [ok("Values", "every value that the GPUs support was read")]


def _unread(case: Case, device: Device) -> Iterator[Finding]:
    errors = case.driver.errors.get(device.reading.index, {})
    failed = [f"{field} ({code})" for field, code in sorted(errors.items()) if code in _FAULTS]
    if failed:
        advice = device.vendor.fill("check the kernel log for errors of the driver ({failures})")
        yield warning("Values", f"{name_of(device)}: cannot be read: {', '.join(failed)}", advice)


def clocks(case: Case) -> Sequence[Finding]:
    """Check whether the clocks are reduced now."""
    title, cause = "Clocks", "throttled"
    found = _listed(case, {"gpu_slowed"}, title, cause)
    named = {uuid for problem in case.gpu_problems if problem.kind == "gpu_slowed" for uuid in problem.gpus}
    reduced = [f"GPU {g.index}: {', '.join(g.slowed_by)}" for g in case.own[0] if g.slowed_by and g.uuid not in named]
    if reduced := [*reduced, *filter(None, map(_lowered, case.own[1]))]:
        found.append(warning(title, "; ".join(reduced), cause=cause))
    return found or [ok(title, f"not reduced now{_where(case)}")]


def _where(case: Case) -> str:
    return "" if case.options.pid is None else " on the GPUs of this process"


def _lowered(device: Device) -> str:
    """Return that the power limit of a GPU is lowered, or ""."""
    limit, default = device.reading.power_limit_milliwatts, device.reading.power_limit_default_milliwatts
    if not (limit and default and limit < _LOWERED_POWER_LIMIT_RATIO * default):
        return ""
    return f"GPU {device.reading.index}: power limit {limit / 1000:.0f} W, default {default / 1000:.0f} W"


def pcie(case: Case) -> Sequence[Finding]:
    """Check whether each link has the maximum width of GPU and slot. The generation is lower while idle."""
    title, widths = "PCIe link", sorted({gpu.pcie_width for gpu in case.own[0] if gpu.pcie_width})
    if found := _listed(case, {"narrow_link"}, title, "transfer"):
        return found
    lanes = f"{' or '.join(map(str, widths))} lanes" if widths else "the width is not reported"
    if not any(gpu.pcie_width and gpu.pcie_width_max for gpu in case.own[0]):
        return [skipped(title, f"{lanes}; the maximum is not reported" if widths else lanes)]
    narrow = any((gpu.pcie_width or 0) < (gpu.pcie_width_max or 0) for gpu in case.own[0])
    width = "; none is known to be narrow under load" if narrow else ", the maximum of GPU and slot"
    return [ok(title, f"{lanes}{width}")]


def use(case: Case) -> Finding:
    """Check for processes that share a GPU, and show the processes of all."""
    title = "Use now"
    found = "; ".join(_grouped(case.own[1]))
    crowded = [device.reading.index for device in case.own[1] if _is_shared(device)]
    if crowded:
        return warning(title, f"{found}. Several processes share {_devices(crowded)}", cause="contention")
    return ok(title, found)


def _is_shared(device: Device) -> bool:
    """Return whether several processes compute on a GPU, or on one of its MIG devices."""
    found = {
        (p.gpu_instance_id, p.compute_instance_id, p.pid)
        for p in device.reading.processes or ()
        if p.kind != "graphics"
    }
    places = Counter((gi, ci) for gi, ci, _ in found if gi is not None or not device.reading.mig_mode)
    return max(places.values(), default=0) > 1


def _grouped(devices: Iterable[Device]) -> Iterator[str]:
    free = []
    for device in devices:
        reading, pids = device.reading, computing(device)
        on = {p.pid: f" (GI {p.gpu_instance_id})" for p in reading.processes or () if p.gpu_instance_id is not None}
        held = (reading.memory_used_bytes or 0) / (1 << 30)
        # Processes that the driver does not list may hold memory, for example in another container.
        if not (pids or reading.utilization_percent or held >= _UNUSED_MEMORY_GIB or reading.processes is None):
            free.append(reading.index)
            continue
        busy = "" if reading.utilization_percent is None else f"{reading.utilization_percent} % busy, "
        users = _by([f"{pid}{on.get(pid, '')}" for pid in pids])
        yield f"GPU {reading.index}: {busy}{held:.0f} GiB held{users}"
    if free:
        yield f"{_devices(free)} free"


def _by(pids: list[str]) -> str:
    more = " …" if len(pids) > _MAX_SHOWN_PIDS else ""
    return f" by pid {', '.join(pids[:_MAX_SHOWN_PIDS])}{more}" if pids else ""


def _devices(indexes: list[int]) -> str:
    return ("GPUs " if len(indexes) > 1 else "GPU ") + ", ".join(map(str, indexes))
