"""Checks of the condition of the GPUs that are up: modes, errors, clocks, PCIe link, use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.doctor.gpus import name_of
from gpugauge.driver import codes
from gpugauge.driver.api import Device
from gpugauge.faults.judged import health_of
from gpugauge.faults.repair import ANY_SITE
from gpugauge.faults.table import NARROW, ailments, slowdowns

# Codes of a call that should have worked. Others: a library that is too old, a value that this GPU or this user
# does not have.
_FAULTS = codes.CODES - codes.UNSUPPORTED - {codes.IMPLAUSIBLE, codes.INVALID_ARGUMENT}
_FAULTS -= {codes.NO_PERMISSION, codes.NOT_FOUND}
_LOWERED_POWER_LIMIT_RATIO = 0.95  # of the default limit; a lower limit was set on purpose
_UNUSED_MEMORY_GIB = 1.0  # drivers and desktops hold less
_MAX_SHOWN_PIDS = 4


def obstacle(case: Case) -> str:
    """Return why the condition cannot be checked, or ""."""
    return "" if case.driver.up else "no GPU answers"


def modes(case: Case) -> Sequence[Finding]:
    """Check for modes that prevent all computation."""
    return [f for device in case.driver.up for f in _modes(device)] or [ok("Modes", "every GPU allows computation")]


def _modes(device: Device) -> Iterator[Finding]:
    reading, name = device.reading, name_of(device)
    if reading.compute_mode == "prohibited":
        advice = device.vendor.fill("{compute}", reading.index)
        yield failure("Modes", f"{name}: the compute mode is Prohibited", advice)
    if reading.mig_mode and reading.mig_instances == ():
        advice = device.vendor.fill("{divide}", reading.index)
        yield failure("Modes", f"{name}: MIG is on and there is no MIG device", advice, "no_visible_device")


def health(case: Case) -> Sequence[Finding]:
    """Check for errors of the GPUs."""
    found = [f for device in case.driver.up for f in _errors(device, simulated=case.simulated)]
    return found or [ok("Errors", "the driver reports none")]


def _errors(device: Device, *, simulated: bool) -> Iterator[Finding]:
    found, action = health_of(device), device.reading.recovery_action
    if action is not None and action not in codes.RECOVERY_ACTIONS:
        found = replace(found, recovery_action=action)
    for ailment in ailments(found, device.reading.index):
        make = failure if ailment.grave else warning
        users = [("", None if simulated else pid) for pid in computing(device)]
        yield make("Errors", f"{name_of(device)}: {ailment.text}", ANY_SITE.fill(ailment.advice, device.uuid, users))


def values(case: Case) -> Sequence[Finding]:
    """Check for values that the driver failed to read."""
    found = [finding for device in case.driver.up for finding in _unread(case, device)]
    return found or [ok("Values", "every value that the GPUs support was read")]


def _unread(case: Case, device: Device) -> Iterator[Finding]:
    errors = case.driver.errors.get(device.reading.index, {})
    failed = [f"{field} ({code})" for field, code in sorted(errors.items()) if code in _FAULTS]
    if failed:
        advice = device.vendor.fill("check the kernel log for errors of the driver ({failures})")
        yield warning("Values", f"{name_of(device)}: cannot be read: {', '.join(failed)}", advice)


def clocks(case: Case) -> Finding:
    """Check whether the clocks are reduced now."""
    title = "Clocks"
    reduced = [text for device in case.driver.up if (text := _reductions(device))]
    if reduced:
        return warning(title, "; ".join(reduced), cause="throttled")
    return ok(title, "not reduced now")


def _reductions(device: Device) -> str:
    reading = device.reading
    reasons = slowdowns(reading.clocks_event_reasons or ())
    limit, default = reading.power_limit_milliwatts, reading.power_limit_default_milliwatts
    if limit and default and limit < _LOWERED_POWER_LIMIT_RATIO * default:
        reasons.append(f"power limit {limit / 1000:.0f} W, default {default / 1000:.0f} W")
    return f"GPU {reading.index}: {', '.join(reasons)}" if reasons else ""


def pcie(case: Case) -> Finding:
    """Check whether each link has the maximum width of GPU and slot. The generation is lower while idle."""
    title = "PCIe link"
    widths = [(d.reading.index, d.reading.pcie_width, d.reading.pcie_width_max) for d in case.driver.up]
    known = [(index, width, maximum) for index, width, maximum in widths if width and maximum]
    if not known:
        now = " or ".join(map(str, sorted({width for _, width, _ in widths if width})))
        return skipped(title, f"{now} lanes; the maximum is not reported" if now else "the width is not reported")
    narrow = [f"GPU {index} uses {width} of {maximum} lanes" for index, width, maximum in known if width < maximum]
    if narrow:
        return warning(title, "; ".join(narrow), NARROW, "transfer")
    lanes = sorted({width for _, width, _ in known})
    return ok(title, f"{' or '.join(map(str, lanes))} lanes, the maximum of GPU and slot")


def use(case: Case) -> Finding:
    """Check for processes that share a GPU, and show the processes of all."""
    title = "Use now"
    found = "; ".join(_grouped(case.driver.up))
    crowded = [device.reading.index for device in case.driver.up if len(computing(device)) > 1]
    if crowded:
        return warning(title, f"{found}. Several processes share {_devices(crowded)}", cause="contention")
    return ok(title, found)


def computing(device: Device) -> list[int]:
    """Return the pids of the compute processes that the driver lists for a GPU."""
    return sorted({process.pid for process in device.reading.processes or () if process.kind != "graphics"})


def _grouped(devices: Iterable[Device]) -> Iterator[str]:
    free = []
    for device in devices:
        reading, pids = device.reading, computing(device)
        held = (reading.memory_used_bytes or 0) / (1 << 30)
        # Processes that the driver does not list may hold memory, for example in another container.
        if not (pids or reading.utilization_percent or held >= _UNUSED_MEMORY_GIB or reading.processes is None):
            free.append(reading.index)
            continue
        busy = "" if reading.utilization_percent is None else f"{reading.utilization_percent} % busy, "
        yield f"GPU {reading.index}: {busy}{held:.0f} GiB held{_by(pids)}"
    if free:
        yield f"{_devices(free)} free"


def _by(pids: list[int]) -> str:
    more = " …" if len(pids) > _MAX_SHOWN_PIDS else ""
    return f" by pid {', '.join(map(str, pids[:_MAX_SHOWN_PIDS]))}{more}" if pids else ""


def _devices(indexes: list[int]) -> str:
    return ("GPUs " if len(indexes) > 1 else "GPU ") + ", ".join(map(str, indexes))
