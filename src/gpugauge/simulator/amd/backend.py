"""The backend of AMD's GPUs with the files of a scenario."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpugauge.driver.amd.amd import Amd
from gpugauge.driver.codes import Group
from gpugauge.simulator.amd.files import Machine
from gpugauge.simulator.device.world import World


class SimulatedAmd(Amd):
    """Reads the files that the GPUs of a scenario have at the time of each reading."""

    def open(self, *, simulate: Mapping[str, Any]) -> None:  # type: ignore[override]  # the paths are those of the scenario
        """Write the files, and find the GPUs in them. Raises DriverError without any."""
        self._world = World(simulate, self._clock)
        self._folder = tempfile.TemporaryDirectory(prefix="gpugauge-amd-")
        root = Path(self._folder.name)
        self._machine = Machine(root, [device for device in self._world.devices if device.is_amd])
        self._machine.write(self._world.now())
        super().open(str(root / "sys"), str(root / "proc"))

    def read(self, index: int, groups: Iterable[Group]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Write the files of now, and read them. Raises DriverError."""
        self._machine.write(self._world.now())
        return super().read(index, groups)

    def close(self) -> None:
        """Remove the files."""
        super().close()
        self._folder.cleanup()
