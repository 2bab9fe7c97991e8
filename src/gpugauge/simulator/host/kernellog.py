"""The double of the kernel log: the Xid errors from before the start of a scenario. NVML reports the later ones."""

from __future__ import annotations

import time

from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.model import Scenario


def kernel_log(scenario: Scenario) -> str:
    """Return the records as /dev/kmsg has them; an error from before the boot of this machine has the time 0."""
    world = World(scenario.simulation())
    start = time.monotonic() - world.now()
    errors = sorted((at, device.bus_id, xid) for device in world.devices for at, xid in device.health.xids if at < 0)
    # The kernel writes the domain with four digits, and no function.
    return "".join(
        f"4,{i},{max(0, round(1e6 * (start + at)))},-;NVRM: Xid (PCI:{bus_id[4:-2].lower()}): {xid}, simulated\n"
        for i, (at, bus_id, xid) in enumerate(errors)
    )
