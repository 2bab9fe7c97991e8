"""Facts about the place of a training that the training cannot know: its GPUs' CPUs and links, and the other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpugauge.base.text import cpu_set
from gpugauge.driver.api import DeviceReading
from gpugauge.metric import LabelValues
from gpugauge.node import training
from gpugauge.node.node import NO_READING, Node
from gpugauge.sessions.session import Session


def surroundings(node: Node, sessions: Mapping[str, Session]) -> dict[str, dict[str, str]]:
    """Return the facts of each session by its `process` label; those that are not known are absent."""
    readings = {device.uuid: device.reading for device in node.devices if device.up}
    near = {uuid: cpu_set(cpus) for uuid, reading in readings.items() if (cpus := reading.value("local_cpus"))}
    homes_of = _homes_of_jobs(sessions.values())
    found = {}
    for label, session in sessions.items():
        used, host = used_devices(session), node.hosts.get(label)
        facts = {
            "cpus_near_gpu": _near([near.get(uuid) for uuid in used], cpu_set(host.bounds.cpu_list) if host else None),
            "narrow_link": _narrow([readings.get(uuid, NO_READING) for uuid in used]),
            "stray_gpu": _stray(session, homes_of.get(session.owner[:3], frozenset())),
        }
        found[label] = {name: value for name, value in facts.items() if value}
    return found


def used_devices(session: Session) -> list[str]:
    """Return the uuids of the devices on which the process has tensors."""
    return list(training.by_uuid(session, lambda d: d.allocated))


def homes(session: Session) -> set[str]:
    """Return the uuids of the devices that have its parameters."""
    places = training.parameter_bytes(session)
    return {d.uuid for d in training.visible(session) if d.uuid and f"cuda:{d.index}" in places}


def _near(lists: Sequence[frozenset[int] | None], own: frozenset[int] | None) -> str:
    """Return no if the process runs on no CPU that is near any of its GPUs."""
    known = [cpus for cpus in lists if cpus]
    if not own or not known or len(known) < len(lists):
        return ""
    return "yes" if any(cpus & own for cpus in known) else "no"


def _narrow(used: Sequence[DeviceReading]) -> str:
    """Return whether the link of a GPU has fewer lanes than GPU and slot allow. A link that sleeps shows nothing."""
    shown = []
    for gpu in used:
        if gpu.pcie_width is None or gpu.pcie_width_max is None or gpu.pcie_generation != gpu.pcie_generation_max:
            return ""
        shown.append(gpu.pcie_width < gpu.pcie_width_max)
    return "" if not shown else "yes" if any(shown) else "no"


def _homes_of_jobs(sessions: Iterable[Session]) -> dict[LabelValues, set[str]]:
    found: dict[LabelValues, set[str]] = {}
    for session in sessions:
        if any(session.owner[:3]):
            found.setdefault(session.owner[:3], set()).update(homes(session))
    return found


def _stray(session: Session, homes_of_job: Collection[str]) -> str:
    """Return whether a rank holds memory on a GPU that has none of its parameters, but those of another rank."""
    own = homes(session)
    if not own or not any(session.owner[:3]):
        return ""
    return "no" if (set(used_devices(session)) - own).isdisjoint(homes_of_job) else "yes"
