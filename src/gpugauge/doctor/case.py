"""What the checks look at. Each source is asked once, when the first check needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gpugauge.doctor import DEFAULT_URL, gpus, nodes, target
from gpugauge.doctor.daemon import Daemon, ask_daemon
from gpugauge.driver.api import Device
from gpugauge.driver.client import Worker
from gpugauge.driver.nvidia import WORKER
from gpugauge.workload.procfs import Procfs


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked on the command line. `timeout` in seconds, for each question to the Python that trains."""

    pid: int | None = None
    python: str | None = None
    url: str = DEFAULT_URL
    timed: bool = True
    force: bool = False
    timeout: float = 60.0
    simulation: Mapping[str, Any] | None = None
    worker: str = WORKER  # the module of the worker process


class Case:
    """One examination. Everything here may be slow the first time, and nothing raises."""

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str] | None = None,
        root: Path = Path("/"),
        platform: str = sys.platform,
    ) -> None:
        self.options = options
        self.environ = dict(os.environ if environ is None else environ)
        self.root = root
        self.platform = platform

    @property
    def simulated(self) -> bool:
        """Whether the GPUs do not exist."""
        return self.options.simulation is not None

    @cached_property
    def driver(self) -> gpus.Driver:
        """What the driver says."""
        options = self.options
        return gpus.ask(partial(Worker, options.worker), options.simulation)

    @cached_property
    def pci(self) -> dict[str, int]:
        """GPUs on the PCI bus by vendor."""
        return nodes.graphics_devices(self.root / "sys")

    @cached_property
    def contained(self) -> bool:
        """Whether this is a container."""
        return nodes.in_container(self.environ, self.root)

    @property
    def subsystem(self) -> bool:
        """Whether this is Linux under Windows (WSL), which has one device file of its own for all GPUs."""
        return (self.root / "dev/dxg").exists()

    @property
    def has_nvidia(self) -> bool:
        """Whether there is a GPU of NVIDIA's here, working or not."""
        return bool(self.driver.devices) or "NVIDIA" in self.pci

    @cached_property
    def python(self) -> tuple[str, str]:
        """The interpreter to ask, and why there is none."""
        try:
            return target.find_python(self.options.python, self.environ), ""
        except target.PythonError as error:
            return "", str(error)

    @cached_property
    def torch(self) -> target.Answer:
        """What the Python that trains says of its torch."""
        return self._asked("facts")

    @cached_property
    def timings(self) -> target.Answer:
        """What torch measured; makes the GPU busy for some seconds."""
        return self._asked("timings")

    @cached_property
    def procfs(self) -> Procfs:
        """The processes of this machine."""
        return Procfs(str(self.root / "proc"))

    @cached_property
    def daemon(self) -> Daemon:
        """What the running daemon knows."""
        return ask_daemon(self.options.url)

    @property
    def build(self) -> str:
        """What torch was built for: cuda, rocm, xpu, mps or cpu; empty when that is not known."""
        facts = self.torch.facts
        if "torch" not in facts:
            return ""
        kinds = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu", "mps": "mps_built"}
        return next((kind for kind, key in kinds.items() if facts.get(key)), "cpu")

    def device_of_torch(self) -> Device | None:
        """The GPU that torch calls its device 0, as the driver knows it; None if that cannot be told."""
        devices = self.torch.facts.get("devices") or [{}]
        uuid = devices[0].get("uuid")
        if uuid:
            return next((device for device in self.driver.up if device.uuid.removeprefix("GPU-") == uuid), None)
        return self.driver.up[0] if len(self.driver.up) == 1 else None

    def _asked(self, what: Any) -> target.Answer:
        python, problem = self.python
        if not python:
            return target.Answer({}, problem)
        try:
            return target.ask(python, what, self.options.timeout, self.environ)
        except target.PythonError as error:
            return target.Answer({}, str(error))
