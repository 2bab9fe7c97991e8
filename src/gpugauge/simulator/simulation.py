"""The simulated parts of a machine: processes, driver and trainings of a scenario. Only `--simulate` loads it."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from gpugauge.driver.bus import BusDevice, pci_address
from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.settings.kinds import ConfigError
from gpugauge.simulator.device.world import World
from gpugauge.simulator.host.procfs import ProcTree, kernel_log
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.workload.procfs import Procfs


class Simulation:
    """A running scenario, with processes in a folder like /proc, which the stack removes. Raises ConfigError."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.scenario = load_scenario(name)
        try:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpugauge-proc-")))
            self._tree = ProcTree(root, self.scenario)
            self.update()
            self.kernel_log = root / "kmsg"
            self.kernel_log.write_text(kernel_log(self.scenario))
        except OSError as error:
            message = f"simulate: the simulated processes need a folder for temporary files (TMPDIR): {error.strerror}"
            raise ConfigError(message) from None
        self._world = World(self.scenario.simulation())
        devices = self._world.devices
        self.vendor = AMD if devices and all(device.is_amd for device in devices) else NVIDIA
        self.procfs = Procfs(str(root))
        self.cgroup_root, self.pod_logs = self._tree.cgroup_root, self._tree.pod_logs

    def update(self) -> None:
        """Update the processes to the current second."""
        self._tree.update(time.monotonic())

    def devices(self) -> frozenset[str]:
        """Return the uuids of the GPUs on the bus."""
        now = self._world.now()
        return frozenset(device.uuid for device in self._world.devices if device.present(now))

    def bus(self) -> tuple[BusDevice, ...]:
        """Return the GPUs on the bus as the kernel lists them."""
        now = self._world.now()
        present = [device for device in self._world.devices if device.on_bus(now)]
        return tuple(BusDevice(pci_address(device.bus_id), visible=True) for device in present)
