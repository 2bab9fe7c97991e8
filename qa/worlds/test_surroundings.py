"""Facts about the place of a training: drawn machines, whose mistakes are known from the drawing."""

from __future__ import annotations

import random

from gpugauge.collectors.training.surroundings import surroundings
from gpugauge.metric import Family
from gpugauge.sessions.session import Session
from gpugauge.snapshot import Section
from gpugauge.verdict import mistakes
from gpugauge.wire import messages as wire
from qa.worlds.scraped import node_of
from qa.worlds.timeline import ROWS

GIB = 1 << 30


def listed(cpus: set[int], draw: random.Random) -> str:
    """Return a list of CPUs as the kernel writes it, or with each CPU alone."""
    if draw.random() < 0.3:
        return ",".join(map(str, sorted(cpus)))
    parts, rest = [], sorted(cpus)
    while rest:
        last = rest[0]
        while last + 1 in rest:
            last += 1
        parts.append(f"{rest[0]}-{last}" if last > rest[0] else f"{last}")
        rest = [cpu for cpu in rest if cpu > last]
    return ",".join(parts)


def drawn(draw: random.Random) -> tuple[Section, dict[str, Session], dict[str, dict[str, bool | None]]]:
    """Return the series of a machine, its sessions, and by process the mistakes that it makes (None: not known)."""
    count = draw.randint(1, 8)
    near = {f"GPU-{i}": set(range(16 * (i // 4), 16 * (i // 4) + 16)) for i in range(count)}
    link = {uuid: draw.choice(["full", "full", "narrow", "asleep", "unknown"]) for uuid in near}
    sees_cpus = draw.random() < 0.9
    samples: dict[str, list[tuple[tuple[str, ...], float]]] = {
        "gpu_local_cpus_info": [((u, listed(c, draw)), 1) for u, c in near.items()] if sees_cpus else [],
        "gpu_process_affinity_info": [],
        "gpu_pcie_width": [],
        "gpu_pcie_generation": [],
    }
    for uuid, state in link.items():
        if state != "unknown":
            width, generation = (8 if state == "narrow" else 16), (1 if state == "asleep" else 5)
            samples["gpu_pcie_width"] += [((uuid, "current"), width), ((uuid, "max"), 16)]
            samples["gpu_pcie_generation"] += [((uuid, "current"), generation), ((uuid, "max"), 5)]
    sessions, truth = {}, {}
    job = draw.random() < 0.7
    for rank, home in enumerate(near):
        name = f"p{rank}"
        strays = {u for u in near if u != home and draw.random() < 0.15}
        model = home if draw.random() < 0.8 else None  # the parameters are on the CPU
        cpus = set(draw.sample(range(32), draw.randint(1, 12)))
        known = draw.random() < 0.9
        if known:
            samples["gpu_process_affinity_info"].append(((name, listed(cpus, draw)), 1))
        used = sorted({home, *strays})
        devices = tuple(wire.Device(i, u, allocated=GIB if u in used else None) for i, u in enumerate(near))
        place = f"cuda:{list(near).index(home)}" if model else "cpu"
        snap = wire.Snap(name, 1, devices=devices, parameters=(wire.Parameters(place, "float32", 1, 1, 4),))
        owner = ("slurm", "7", "", "slurm", "") if job else ("",) * 5
        sessions[name] = Session(wire.Hello(name, 0), 1, 1, snap)._replace(owner=owner)
        links = [link[u] for u in used]
        undecided = any(state in ("unknown", "asleep") for state in links)
        truth[name] = {
            "remote_cpus": all(not near[u] & cpus for u in used) if known and sees_cpus else None,
            "narrow_link": None if undecided else "narrow" in links,
            "_strays": bool(strays),
        }
    homes = {
        n: {d.uuid for d in s.snap.devices if f"cuda:{d.index}" == s.snap.parameters[0].device}
        for n, s in sessions.items()
        if s.snap
    }
    for name, session in sessions.items():
        assert session.snap
        held = {d.uuid for d in session.snap.devices if d.allocated} - homes[name]
        others = set().union(*(homes[o] for o in sessions if o != name))
        truth[name].pop("_strays")
        truth[name]["stray_gpu"] = bool(held & others) if job and homes[name] else None
    families = tuple(Family(ROWS[name], tuple(rows)) for name, rows in samples.items() if rows)
    return Section("x", families), sessions, truth


def test_drawn_places() -> None:
    draw = random.Random(23)
    seen = set()
    for _ in range(300):
        section, sessions, truth = drawn(draw)
        around = surroundings(node_of([section]), sessions)
        for name, expected in truth.items():
            found = mistakes.found(around[name])
            for mistake, present in expected.items():
                assert found.get(mistake) == present, (mistake, around[name], expected)
                seen.add((mistake, present))
    assert len(seen) == 9, "each mistake is made, not made and not known"
