"""Processes on MIG devices: each stands below its device in every view."""

from __future__ import annotations

import random
import re

from tests.drawn import seeds
from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.snapshot import Section, Snapshot
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.status.use import mig_name
from gpugauge.terminal.rows import processes
from gpugauge.terminal.screen import process_lines
from gpugauge.terminal.table import table
from gpugauge.web.page.links import NO_LINKS
from gpugauge.web.page.render import content
from qa.worlds.nodes import GIB, NOW
from qa.worlds.pids import pids_of
from qa.worlds.reading import Reader
from qa.worlds.scraped import snapshot_of

PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")


def drawn(dice: random.Random) -> tuple[list[tuple[str, str]], dict[str, str | None], Snapshot]:
    """Return the MIG devices (uuid, profile), the device of each process (None: not known), and the snapshot."""
    devices = [(f"MIG-{number}", dice.choice(PROFILES)) for number in range(dice.randint(1, 7))]
    where = {f"p{n}": dice.choice([*(uuid for uuid, _ in devices), None]) for n in range(dice.randint(0, 9))}
    families = (
        family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
        family("gpu_up", ({"uuid": "GPU-a"}, 1)),
        family("gpu_info", ({"uuid": "GPU-a", "index": "3", "name": "NVIDIA A100-SXM4-80GB"}, 1)),
        family(
            "gpu_mig_info",
            *(
                ({"uuid": uuid, "parent_uuid": "GPU-a", "profile": profile, "gpu_instance": uuid[4:]}, 1)
                for uuid, profile in devices
            ),
        ),
        family("gpu_mig_memory_used_bytes", *(({"uuid": uuid}, 10 << 20) for uuid, _ in devices)),
        family(
            "gpu_mig_process_memory_used_bytes",
            *(({"process": process, "uuid": uuid}, GIB) for process, uuid in where.items() if uuid),
        ),
        family("gpu_process_memory_used_bytes", *(({"process": p, "uuid": "GPU-a"}, GIB) for p in where)),
        family("gpu_process_info", *(({"process": p, "pid": f"70{p[1:]}", "kind": "compute"}, 1) for p in where)),
    )
    return devices, where, snapshot_of(NOW, 100.0, (Section("all", families),), {})


@seeds(range(30))
def test_each_process_stands_below_its_device(seed: int) -> None:
    devices, where, snapshot = drawn(random.Random(seed))
    facts = status(snapshot, History())
    (gpu,) = facts["gpus"]
    expected: dict[str | None, set[str]] = {place: set() for place in (None, *(uuid for uuid, _ in devices))}
    for process, place in where.items():
        expected[place].add(f"70{process[1:]}")

    # On a terminal: what stands below the line of each device, and above the first one.
    places = iter(devices)
    below: dict[str | None, set[str]] = {None: set()}
    at: str | None = None
    for line in table(decoded(Status, facts), False, NOW, 120).splitlines():
        if found := re.match(r" +MIG ([\w.]+)(?: GI \d+)?(?: CI \d+)?  ", line):
            at, profile = next(places)
            assert found[1] == profile
            below[at] = set()
        elif found := re.match(r" +(70\d) ", line):
            below[at].add(found[1])
        elif found := re.match(r" +sums of pids ([\d, -]+)$", line):
            below[at] |= {str(pid) for pid in pids_of(found[1])}
    assert below == expected

    # On the page.
    (group,) = [g for g in Reader("0".join(content(decoded(Status, facts), None, NO_LINKS))).groups if g.key == "GPU-a"]
    found_rows: dict[str | None, set[str]] = {None: set()}
    device: str | None = None
    for row in group.rows:
        if row.kind == "mig":
            device = row.key
            found_rows[device] = set()
        elif row.kind == "process":
            found_rows[device].add(re.findall(r"pid (70\d)", row.cells[0])[0])
    assert found_rows == expected

    # A device with a process is in use, whatever memory it reports.
    assert [d["state_words"] for d in gpu["mig"]] == ["in use" if expected[uuid] else "free" for uuid, _ in devices]
    names = {device.uuid: mig_name(device) for device in decoded(Status, facts).gpus[0].mig}
    for _, line, _ in process_lines(processes(decoded(Status, facts)), NOW, 120)[1]:
        pid, _, rest = line.strip().partition("  ")
        own = next(uuid for process, uuid in where.items() if f"70{process[1:]}" == pid)
        assert rest.strip().split("  ")[0] == (f"3 {names[own]}" if own else "3")
