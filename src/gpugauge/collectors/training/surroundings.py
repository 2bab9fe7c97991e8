"""Facts about the place of a training that the training cannot know: its GPUs' CPUs and links, and the other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpugauge.metric import Family, LabelValues
from gpugauge.sessions.session import Session
from gpugauge.snapshot import Section

_NAMES = frozenset({"gpu_local_cpus_info", "gpu_process_affinity_info", "gpu_pcie_width", "gpu_pcie_generation"})


def surroundings(sections: Iterable[Section], sessions: Mapping[str, Session]) -> dict[str, dict[str, str]]:
    """Return the facts of each session by its `process` label; those that are not known are absent."""
    families = {f.metric.name: f for section in sections for f in section.families if f.metric.name in _NAMES}
    cpus = {name: _lists(families.get(name)) for name in ("gpu_local_cpus_info", "gpu_process_affinity_info")}
    links = {name: _numbers(families.get(name)) for name in ("gpu_pcie_width", "gpu_pcie_generation")}
    homes_of = _homes_of_jobs(sessions.values())
    found = {}
    for label, session in sessions.items():
        used = used_devices(session)
        near = [cpus["gpu_local_cpus_info"].get(uuid) for uuid in used]
        facts = {
            "cpus_near_gpu": _near(near, cpus["gpu_process_affinity_info"].get(label)),
            "narrow_link": _narrow(used, links["gpu_pcie_width"], links["gpu_pcie_generation"]),
            "stray_gpu": _stray(session, homes_of.get(session.owner[:3], frozenset())),
        }
        found[label] = {name: value for name, value in facts.items() if value}
    return found


def used_devices(session: Session) -> list[str]:
    """Return the uuids of the devices on which the process has tensors."""
    devices = session.snap.devices if session.snap else ()
    return [d.uuid for d in devices if d.uuid is not None and d.allocated is not None]


def homes(session: Session) -> set[str]:
    """Return the uuids of the devices that have its parameters."""
    snap = session.snap
    places = {entry.device for entry in snap.parameters} if snap else set()
    return {d.uuid for d in (snap.devices if snap else ()) if d.uuid is not None and f"cuda:{d.index}" in places}


def cpu_set(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as 0-7,16; empty for another text."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _near(lists: Sequence[frozenset[int] | None], own: frozenset[int] | None) -> str:
    """Return no if the process runs on no CPU that is near any of its GPUs."""
    known = [cpus for cpus in lists if cpus]
    if not own or not known or len(known) < len(lists):
        return ""
    return "yes" if any(cpus & own for cpus in known) else "no"


def _narrow(used: Sequence[str], widths: Mapping[LabelValues, float], generations: Mapping[LabelValues, float]) -> str:
    """Return whether the link of a GPU has fewer lanes than GPU and slot allow. A link that sleeps shows nothing."""
    shown = []
    for uuid in used:
        width, most = widths.get((uuid, "current")), widths.get((uuid, "max"))
        awake = generations.get((uuid, "current")) == generations.get((uuid, "max"))
        if width is None or most is None or not awake:
            return ""
        shown.append(width < most)
    return "" if not shown else "yes" if any(shown) else "no"


def _homes_of_jobs(sessions: Iterable[Session]) -> dict[LabelValues, set[str]]:
    """Return the uuids of the devices that have parameters of any rank, by job."""
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


def _lists(family: Family | None) -> dict[str, frozenset[int]]:
    return {labels[0]: cpu_set(labels[1]) for labels, _ in family.samples} if family else {}


def _numbers(family: Family | None) -> dict[LabelValues, float]:
    return {k: float(v) for k, v in family.samples if isinstance(v, (int, float))} if family else {}
