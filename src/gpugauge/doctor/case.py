"""Input of the checks. Each source is read once, when the first check needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gpugauge.doctor import DEFAULT_URL, gpus, nodes, target
from gpugauge.driver.api import Device
from gpugauge.driver.bus import worker_module
from gpugauge.driver.client import Worker
from gpugauge.driver.vendors import Vendor
from gpugauge.driver.vendors.amd import AMD, UNBUILT
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.faults.repair import ANY_SITE, needs
from gpugauge.status.gpu_problems import gpu_problems, repair
from gpugauge.status.model import GpuStatus, Problem, ProcessStatus, Status
from gpugauge.status.problem import order
from gpugauge.terminal import reply
from gpugauge.terminal.rows import Process, processes
from gpugauge.web.client import RequestError
from gpugauge.workload.procfs import Procfs

OF_GPU = frozenset({"driver", "gpu_down", "gpu_health", "xid", "repair", "gpu_slowed", "narrow_link"})
"""Kinds of problems because of which no program on the GPU works, or works as well as it could."""
_NO_LIBRARY = "library_not_found"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line. `timeout`: seconds for each run of the examined Python."""

    pid: int | None = None
    python: str | None = None
    url: str = DEFAULT_URL
    timed: bool = True
    force: bool = False
    timeout: float = 60.0
    simulation: Mapping[str, Any] | None = None
    worker: str = ""  # the module of the worker process, "" for that of the machine


class Case:
    """Data of one run of the doctor. The first access to a property may be slow; none raises."""

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
        """Whether the GPUs are simulated."""
        return self.options.simulation is not None

    @cached_property
    def driver(self) -> gpus.Driver:
        """State of the driver and readings of its GPUs."""
        options = self.options
        worker = options.worker or (NVIDIA.worker if self.simulated else worker_module(self.root / "sys"))
        return gpus.ask(partial(Worker, worker), options.simulation)

    @property
    def vendor(self) -> Vendor:
        """The vendor whose driver is examined: NVIDIA, unless all GPUs are of AMD."""
        return AMD if self.has_amd and not self.has_nvidia else NVIDIA

    @cached_property
    def pci(self) -> dict[str, list[str]]:
        """Addresses of the GPUs on the PCI bus, as 0000:3b:00.0, by vendor; of none that is simulated."""
        return {} if self.simulated else nodes.graphics_devices(self.root / "sys")

    @cached_property
    def in_container(self) -> bool:
        """Whether the doctor runs in a container."""
        return nodes.in_container(self.environ, self.root)

    @cached_property
    def device_files(self) -> list[nodes.Node]:
        """NVIDIA's device files, each of which was opened."""
        return nodes.device_files(self.root / "dev")

    @property
    def is_wsl(self) -> bool:
        """Whether this is the Windows Subsystem for Linux (WSL), which has one device file for all GPUs."""
        return (self.root / "dev/dxg").exists()

    @property
    def has_nvidia(self) -> bool:
        """Whether there is an NVIDIA GPU, whether it works or not."""
        return self._has(NVIDIA)

    @property
    def has_amd(self) -> bool:
        """Whether there is a GPU of AMD, whether it works or not."""
        return self._has(AMD)

    def _has(self, vendor: Vendor) -> bool:
        return vendor.name in self.pci or any(device.vendor is vendor for device in self.driver.devices)

    @property
    def has_gpu(self) -> bool:
        """Whether there is a GPU, and builds of torch for it."""
        targets = nodes.kfd_targets(self.root / "sys")
        return self.has_nvidia or (self.has_amd and not (targets and targets <= UNBUILT))

    @cached_property
    def without_gpu(self) -> bool:
        """Whether this machine has no GPU that CUDA or ROCm could use: on the PCI bus, in /dev or in the driver."""
        if self.simulated or self.platform != "linux" or self.is_wsl or self.driver.devices:
            return False
        return not {"NVIDIA", "AMD"} & self.pci.keys() and not nodes.has_gpu_files(self.root / "dev")

    @property
    def by_torch_alone(self) -> bool:
        """Whether only torch sees a GPU: that of a Jetson is neither on the PCI bus nor known to NVML."""
        if not self.without_gpu or self.driver.reason != _NO_LIBRARY or self.options.pid is not None:
            return False
        return bool(self.torch.facts.get("available"))

    @property
    def by_daemon_alone(self) -> bool:
        """Whether only the daemon has GPUs, simulated ones or those of another machine."""
        return self.without_gpu and bool(self.gpus)

    @property
    def wasted(self) -> bool:
        """Whether the daemon has a problem of the machine that is examined."""
        return bool(self.options.pid is None and self.reported and self.reported.problems)

    @property
    def is_bare(self) -> bool:
        """Whether nothing on this machine shows that it should have a GPU: there is none, and no driver library."""
        return self.without_gpu and self.driver.reason == _NO_LIBRARY and not self.by_torch_alone

    @property
    def trains_without_gpu(self) -> bool:
        """Whether a process is examined on a machine without a GPU: training on the CPU is no fault of it."""
        return self.options.pid is not None and self.without_gpu

    @cached_property
    def python(self) -> tuple[str, str]:
        """Path of the examined interpreter, and the problem if there is none."""
        try:
            return target.find_python(self.options.python, self.environ), ""
        except target.PythonError as error:
            return "", str(error)

    @property
    def names_python(self) -> bool:
        """Whether a Python was given or an environment is active. That of the machine seldom is one for trainings."""
        return bool(self.options.python or self.environ.get("VIRTUAL_ENV") or self.environ.get("CONDA_PREFIX"))

    @cached_property
    def torch(self) -> target.ProbeResult:
        """Facts on torch in the examined Python."""
        return self._probe("facts")

    @cached_property
    def timings(self) -> target.ProbeResult:
        """Timings measured with torch. The measurement keeps the GPU busy for some seconds."""
        return self._probe("timings")

    @cached_property
    def procfs(self) -> Procfs:
        """Reader of /proc."""
        return Procfs(str(self.root / "proc"))

    @cached_property
    def daemon(self) -> tuple[Status | None, str]:
        """Status of the running daemon, and the problem if there is none."""
        try:
            return reply.fetch(self.options.url).status, ""
        except RequestError as error:
            return None, str(error)

    @cached_property
    def reported(self) -> Status | None:
        """Status of the daemon if it watches the GPUs of this machine, or if this machine has none."""
        status, own = self.daemon[0], {device.uuid for device in self.driver.devices if device.uuid}
        return status if status and (not own or own & {gpu.uuid for gpu in status.gpus}) else None

    @cached_property
    def gpus(self) -> Sequence[GpuStatus]:
        """The GPUs as the daemon reports them; without it those that answer here."""
        if self.reported:
            return self.reported.gpus
        return [gpus.status_of(device, self.driver.devices) for device in self.driver.up]

    @cached_property
    def gpu_problems(self) -> Sequence[Problem]:
        """The problems of the GPUs, or of those of the examined process, the gravest first: of the daemon, or of one
        reading.
        """
        devices = self.driver.devices
        needed = [
            need for d in devices for text, fault in gpus.advice_on(d).items() for need in needs(d, [text], fault)
        ]
        known = *gpu_problems(self.gpus, None), *repair(self.gpus, needed, ANY_SITE, simulated=self.simulated)
        found = self.reported.problems if self.reported else sorted(known, key=order)
        found = problems_of(self.process, self.reported) if self.process and self.reported else found
        # What is wrong with a driver that does not work here is said by its own check.
        kinds = OF_GPU if self.driver.reason == "ok" else OF_GPU - {"driver"}
        return [problem for problem in found if problem.kind in kinds]

    @property
    def own(self) -> tuple[Sequence[GpuStatus], Sequence[Device]]:
        """The GPUs as of `gpus` and those that answer here: of the examined process, if it is known to use some."""
        if self.process is None or not self.process.gpus:
            return self.gpus, self.driver.up
        uuids = {gpu.uuid for gpu in self.process.gpus}
        return self.process.gpus, [device for device in self.driver.up if device.uuid in uuids]

    @property
    def known(self) -> Sequence[Process]:
        """What the daemon knows of the processes that have the pid of the examined one, those that run first."""
        status, _ = self.daemon
        return [process for process in processes(status) if process.facts.pid == self.options.pid] if status else []

    @cached_property
    def process(self) -> Process | None:
        """What the daemon knows of the examined process, by its pid or, as in a container, by its start."""
        status, _ = self.daemon
        if self.options.pid is None or status is None:
            return None
        own = self.procfs.process_id(self.options.pid)
        named = next((process for process in self.known if process.facts.ended is None), None)
        return named or next((process for process in processes(status) if process.facts.process == own), None)

    @property
    def facts(self) -> ProcessStatus:
        """What the daemon knows of the examined process, without its GPUs."""
        return self.process.facts if self.process else ProcessStatus(process="")

    @property
    def build(self) -> str:
        """Platform that torch was built for: cuda, rocm, xpu, mps or cpu; "" if unknown."""
        facts = self.torch.facts
        if "torch" not in facts:
            return ""
        kinds = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu", "mps": "mps_built"}
        return next((kind for kind, key in kinds.items() if facts.get(key)), "cpu")

    def device_of_torch(self) -> Device | None:
        """Return the driver's device that is torch's device 0; None if it cannot be determined."""
        devices = self.torch.facts.get("devices") or [{}]
        uuid = devices[0].get("uuid")
        if uuid:
            return next((device for device in self.driver.up if device.uuid.removeprefix("GPU-") == uuid), None)
        return self.driver.up[0] if len(self.driver.up) == 1 else None

    def _probe(self, part: Any) -> target.ProbeResult:
        python, problem = self.python
        if not python:
            return target.ProbeResult({}, problem)
        try:
            return target.ask(python, part, self.options.timeout, self.environ)
        except target.PythonError as error:
            return target.ProbeResult({}, str(error))


def problems_of(process: Process, status: Status) -> list[Problem]:
    """Return the problems of the driver and of the GPUs that a process uses or used last, the gravest first."""
    label, uuids = process.facts.process, {gpu.uuid for gpu in process.gpus}
    uuids |= {gpu.uuid for gpu in status.gpus if any(p.process == label for p in gpu.last_processes or ())}
    own = (problem for problem in status.problems if problem.kind in OF_GPU)
    return [problem for problem in own if uuids.intersection(problem.gpus) or problem.kind == "driver"]
