"""The condition that the GPUs which answer are in: modes, errors, clocks, PCIe link, who uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpugauge.doctor.case import Case
from gpugauge.doctor.finding import Finding, failure, ok, skipped, warning
from gpugauge.driver.api import Device

_PROHIBITED = 2  # nvmlComputeMode_t
_RECOVERY = ("", "reset the GPU", "reboot the node", "drain the GPU's peers", "drain and reset the GPU")
# nvmlClocksEventReasons: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_SLOWED = {0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
_LOWERED = 0.95  # a limit this far below the default was set by somebody
_HELD_GIB = 1.0  # what drivers and desktops take without anybody computing is less
_MOST_PIDS = 4


def obstacle(case: Case) -> str:
    """Return why there is nothing to look at; empty when there is."""
    return "" if case.driver.up else "no GPU answers"


def modes(case: Case) -> Finding:
    """Modes that keep every program from computing."""
    title = "Modes"
    for device in case.driver.up:
        reading = device.reading
        if reading.compute_mode == _PROHIBITED:
            return failure(
                title, f"GPU {reading.index} prohibits computing", f"nvidia-smi -i {reading.index} -c DEFAULT"
            )
        if reading.mig_mode and reading.mig_instances == ():
            advice = f"make one (nvidia-smi mig -i {reading.index} -cgi … -C), or switch MIG off (nvidia-smi -mig 0)"
            return failure(title, f"GPU {reading.index} has MIG on and no MIG device", advice, "no_visible_device")
    return ok(title, "every GPU may compute")


def health(case: Case) -> Finding:
    """Errors of the GPUs themselves."""
    title = "Errors"
    for device in case.driver.up:
        reading = device.reading
        if action := reading.recovery_action or 0:
            wanted = _RECOVERY[action] if action < len(_RECOVERY) else f"action {action}"
            return failure(title, f"GPU {reading.index}: the driver wants an action after an error", wanted)
        if reading.remapped_rows_failure:
            return failure(
                title, f"GPU {reading.index}: a broken row of memory could not be replaced", "have the GPU exchanged"
            )
    uncorrected = [
        device.reading.index
        for device in case.driver.up
        if (device.reading.ecc_errors or {}).get("uncorrected_volatile")
    ]
    if uncorrected:
        advice = "look for Xid errors in the kernel log; reset the GPU when it is free"
        return warning(title, f"uncorrected memory errors on {_devices(uncorrected)}", advice)
    return ok(title, "none that the driver tells of")


def clocks(case: Case) -> Finding:
    """Whether something holds the clocks down now."""
    title = "Clocks"
    slowed = [text for device in case.driver.up if (text := _held_down(device))]
    if slowed:
        return warning(title, "; ".join(slowed), cause="throttled")
    return ok(title, "nothing holds them down now")


def _held_down(device: Device) -> str:
    reading = device.reading
    causes = [name for bit, name in _SLOWED.items() if (reading.clocks_event_reasons or 0) & bit]
    limit, default = reading.power_limit_milliwatts, reading.power_limit_default_milliwatts
    if limit and default and limit < _LOWERED * default:
        causes.append(f"power limit {limit / 1000:.0f} W, by default {default / 1000:.0f} W")
    return f"GPU {reading.index}: {', '.join(causes)}" if causes else ""


def pcie(case: Case) -> Finding:
    """Whether each link has the lanes that GPU and slot can have; the generation falls while idle."""
    title = "PCIe link"
    widths = [(c.reading.index, c.reading.pcie_width, c.reading.pcie_width_max) for c in case.driver.up]
    known = [(index, now, most) for index, now, most in widths if now and most]
    if not known:
        return skipped(title, "the driver does not tell its width")
    narrow = [f"GPU {index} has {now} lanes of {most}" for index, now, most in known if now < most]
    if narrow:
        advice = "reseat the GPU or its riser, and look for slots that share lanes"
        return warning(title, "; ".join(narrow), advice, "transfer")
    lanes = sorted({now for _, now, _ in known})
    return ok(title, f"{' or '.join(map(str, lanes))} lanes, as many as GPU and slot can have")


def use(case: Case) -> Finding:
    """Who uses the GPUs now."""
    title = "Use now"
    found = "; ".join(_grouped(case.driver.up))
    crowded = [device.reading.index for device in case.driver.up if len(computing(device)) > 1]
    if crowded:
        return warning(title, f"{found}. Several processes share {_devices(crowded)}", cause="contention")
    return ok(title, found)


def computing(device: Device) -> list[int]:
    """Return the pids that compute on a GPU, as the driver knows them."""
    return sorted({process.pid for process in device.reading.processes or () if process.kind != "graphics"})


def _grouped(devices: Iterable[Device]) -> Iterator[str]:
    free = []
    for device in devices:
        reading, pids = device.reading, computing(device)
        held = (reading.memory_used_bytes or 0) / (1 << 30)
        # Memory may be held by processes that the driver does not show, in another container for instance.
        if not (pids or reading.utilization_percent or held >= _HELD_GIB or reading.processes is None):
            free.append(reading.index)
            continue
        busy = "" if reading.utilization_percent is None else f"{reading.utilization_percent} % busy, "
        yield f"GPU {reading.index}: {busy}{held:.0f} GiB held{_by(pids)}"
    if free:
        yield f"{_devices(free)} free"


def _by(pids: list[int]) -> str:
    more = " …" if len(pids) > _MOST_PIDS else ""
    return f" by pid {', '.join(map(str, pids[:_MOST_PIDS]))}{more}" if pids else ""


def _devices(indexes: list[int]) -> str:
    return ("GPUs " if len(indexes) > 1 else "GPU ") + ", ".join(map(str, indexes))
