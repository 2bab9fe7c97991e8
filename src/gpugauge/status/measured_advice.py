"""The advice on causes with the values that are known: lanes, clocks, temperature, CPU limit, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpugauge.status.memory_advice import Subject
from gpugauge.status.words import digits

# By the reason of `gpu_clocks_event_active`: what to check.
_LOWERED = {
    "sw_thermal_slowdown": "the cooling (fans, air flow, dust)",
    "hw_thermal_slowdown": "the cooling (fans, air flow, dust)",
    "hw_power_brake_slowdown": "the power supply, which asks the GPU to slow down",
    "hw_slowdown": "cooling and power supply",
}
_PINNED = "pin_memory=True and non_blocking=True"


def transfer(subject: Subject) -> str | None:
    """Return the change with the widths of the PCIe links, None if they are not known."""
    widths = [(_of_gpu(subject, "gpu_pcie_width", uuid)) for uuid in subject.facts.get("devices") or ()]
    known = [(found["current"], found["max"]) for found in widths if found.keys() >= {"current", "max"}]
    if not known or len(known) < len(widths):
        return None
    width, most = min(known, key=lambda pair: pair[0] / pair[1])
    if width < most:
        return f"{_PINNED}; its PCIe link has only {width:.0f} of {most:.0f} lanes: check the seating of the GPU"
    return f"{_PINNED} (its PCIe link has all {most:.0f} lanes)"


def throttled(subject: Subject) -> str | None:
    """Return what to check for the reasons that lower the clocks now, with the temperature; None without a reason."""
    reasons: list[str] = []
    for uuid in subject.facts.get("devices") or ():
        active = [
            reason for reason, value in _of_gpu(subject, "gpu_clocks_event_active", uuid, "reason").items() if value
        ]
        found = [_LOWERED[reason] for reason in active if reason in _LOWERED]
        heat = _of_gpu(subject, "gpu_temperature_celsius", uuid, "sensor").get("gpu")
        at = f", it is at {heat:.0f} °C" if heat is not None and any("thermal" in reason for reason in active) else ""
        reasons += [words + at for words in dict.fromkeys(found)]
    return f"check {' and '.join(dict.fromkeys(reasons))}" if reasons else None


def cpu_limited(subject: Subject) -> str | None:
    """Return the CPU limit and the least that the process needs, None if either is not known or it is enough."""
    limit = subject.value("gpu_process_cgroup_cpus")
    workers = (subject.facts.get("loader") or {}).get("workers", "")
    if limit is None or not workers.isdigit() or limit >= 1 + int(workers):
        return None
    each = f" and one for each of its {workers} loader workers" if int(workers) > 1 else ""
    each = " and one for its loader worker" if workers == "1" else each
    return (
        f"raise its CPU limit from {digits(limit, 2)} to at least {1 + int(workers)} CPUs: one for the training{each}"
    )


def waiting_for_peers(subject: Subject) -> str | None:
    """Return where to find the slowest rank, None if the number of ranks is not known."""
    ranks = subject.facts.get("world_size")
    if not ranks or ranks < 2:
        return None
    return (
        f"find the slowest of its {ranks} ranks, and what limits that one: it has the highest "
        "torch_local_work_seconds_total, in Grafana's dashboard of the job"
    )


BY_CAUSE: Mapping[str, Callable[[Subject], str | None]] = {
    "transfer": transfer,
    "throttled": throttled,
    "cpu_limited": cpu_limited,
    "waiting_for_peers": waiting_for_peers,
}
"""By cause; where it returns None, the advice of the cause holds."""


def _of_gpu(subject: Subject, name: str, uuid: str, label: str = "when") -> dict[str, float]:
    """Return the values of a family of GPUs by a label."""
    return dict(_values(subject, name, uuid, label))


def _values(subject: Subject, name: str, uuid: str, label: str) -> Iterator[tuple[str, float]]:
    for labels, value in subject.of_node(name):
        if labels.get("uuid") == uuid and isinstance(value, (int, float)):
            yield labels[label], float(value)
