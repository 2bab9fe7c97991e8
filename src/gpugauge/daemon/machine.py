"""The sources of the daemon: those of the real machine, or those of a scenario in their place."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpugauge.collectors.kmsg import KernelLog
from gpugauge.daemon.systemd import listen_fds
from gpugauge.driver.bus import BusDevice, amd_devices, bound_to_amd, is_suspended, joined, worker_module
from gpugauge.driver.nvidia.bus import bound_devices, bus_devices, parse
from gpugauge.driver.remembered import default_path
from gpugauge.driver.vendors import Vendor
from gpugauge.driver.vendors.amd import AMD
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.sessions.listener import Sessions, SessionsError
from gpugauge.sessions.session import Session
from gpugauge.settings.model import Kubernetes, Settings
from gpugauge.wire.messages import server_path
from gpugauge.workload.procfs import Procfs

if TYPE_CHECKING:
    from gpugauge.simulator.host.trainings import SimulatedSessions
    from gpugauge.workload.kubernetes.metadata import PodMetadata

log = logging.getLogger("gpugauge")


class Machine(NamedTuple):
    """The sources that differ between a real and a simulated machine."""

    procfs: Procfs  # shows the processes that the driver lists
    cgroup_root: Path
    session_sources: tuple[Sessions | SimulatedSessions, ...]  # the last one includes the sessions of the others
    session_procfs: Callable[[Session], Procfs]  # shows the pid of a session
    kernel_log: KernelLog
    kubelet_socket: Path | None
    pod_logs: Path | None
    worker_module: Callable[[], str]  # runs in the next worker process
    vendor: Vendor  # of GPUs that have not been read
    bound_devices: Callable[[], frozenset[str] | None]  # the GPUs of the kernel driver, None if they cannot be listed
    bus_devices: Callable[[], tuple[BusDevice, ...] | None]  # the GPUs on the PCI bus, None if they cannot be listed
    state_file: Path | None  # in which the GPUs are remembered
    simulated_driver: dict[str, Any] | None = None  # data from which the worker simulates the driver
    scenario: str | None = None  # its name
    host_procfs: Procfs | None = None  # of the machine itself, if `procfs` is simulated
    is_suspended: Callable[[str], bool] = lambda _: False  # whether the kernel has suspended the GPU at a PCI address
    update: Callable[[], None] = lambda: None  # called before each tick


def real_machine(settings: Settings, stack: ExitStack) -> Machine:
    """Return the sources of this machine; `stack` closes them. Raises SessionsError."""
    procfs, sysfs = Procfs(str(settings.path.procfs)), settings.path.sysfs
    sessions = _listen(settings, stack)
    kernel_log = KernelLog(settings.path.kmsg, parse)
    stack.callback(kernel_log.close)
    return Machine(
        procfs=procfs,
        cgroup_root=sysfs / "fs/cgroup",
        session_sources=(sessions,) if sessions else (),
        session_procfs=lambda _: procfs,
        kernel_log=kernel_log,
        kubelet_socket=settings.kubernetes.kubelet_socket,
        pod_logs=settings.path.pod_logs,
        worker_module=lambda: worker_module(sysfs),
        vendor=AMD if amd_devices(sysfs) and not bus_devices(sysfs, settings.path.procfs) else NVIDIA,
        bound_devices=lambda: _united(bound_devices(settings.path.procfs), bound_to_amd(sysfs)),
        # Without amdgpu, the bus is not read once more.
        bus_devices=lambda: joined(
            bus_devices(sysfs, settings.path.procfs), () if bound_to_amd(sysfs) is None else amd_devices(sysfs)
        ),
        is_suspended=lambda address: is_suspended(sysfs, address),
        state_file=settings.driver.state_file or default_path(dict(os.environ)),
    )


def simulated_machine(settings: Settings, scenario: str, stack: ExitStack) -> Machine:
    """Return the sources of a scenario, with the real sessions beside its own. Raises ConfigError or SessionsError."""
    from gpugauge.simulator import WORKER  # noqa: PLC0415  (not loaded on a real machine)
    from gpugauge.simulator.host.trainings import SimulatedSessions  # noqa: PLC0415  (the same)
    from gpugauge.simulator.simulation import Simulation  # noqa: PLC0415  (not loaded on a real machine)

    simulation = Simulation(scenario, stack)
    sessions = _listen(settings, stack)
    simulated = SimulatedSessions(simulation.scenario, sessions, settings.hook.linger_seconds)
    kernel_log = KernelLog(settings.path.kmsg if "path.kmsg" in settings.given else simulation.kernel_log, parse)
    stack.callback(kernel_log.close)
    procfs, host_procfs = simulation.procfs, Procfs(str(settings.path.procfs))
    return Machine(
        procfs=procfs,
        cgroup_root=simulation.cgroup_root,
        session_sources=(sessions, simulated) if sessions else (simulated,),
        session_procfs=lambda session: procfs if simulated.owns(session) else host_procfs,
        kernel_log=kernel_log,
        kubelet_socket=settings.kubernetes.kubelet_socket if "kubernetes.kubelet_socket" in settings.given else None,
        pod_logs=settings.path.pod_logs if "path.pod_logs" in settings.given else simulation.pod_logs,
        worker_module=lambda: WORKER,
        vendor=simulation.vendor,
        bound_devices=simulation.devices,
        bus_devices=simulation.bus,
        state_file=settings.driver.state_file,
        simulated_driver=simulation.scenario.simulation(),
        scenario=simulation.scenario.name,
        host_procfs=host_procfs,
        update=simulation.update,
    )


def _united(*found: frozenset[str] | None) -> frozenset[str] | None:
    known = [each for each in found if each is not None]
    return frozenset().union(*known) if known else None


def pod_metadata(settings: Kubernetes) -> PodMetadata | None:
    """Return the source of the owners of pods, None if it is off, or if this is no pod of a cluster."""
    if settings.pods == "off":
        return None
    from gpugauge.workload.kubernetes.metadata import PodMetadata  # noqa: PLC0415  (TLS is not loaded without)
    from gpugauge.workload.kubernetes.source import of_api, of_kubelet  # noqa: PLC0415  (the same)

    account, verify = settings.service_account, not settings.kubelet_insecure_skip_verify
    if settings.pods == "kubelet":
        address = settings.node_address or ""
        name = settings.node_name or address
        return PodMetadata(of_kubelet(address, name, account, settings.kubelet_ca_file, verify=verify))
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host or not port.isdigit():
        log.warning("kubernetes.pods is api, but this is no pod: KUBERNETES_SERVICE_HOST is not set")
        return None
    return PodMetadata(of_api(host, int(port), settings.node_name or "", account))


def _listen(settings: Settings, stack: ExitStack) -> Sessions | None:
    """Return the opened socket of the hook, None if the default path cannot be used, else raise SessionsError."""
    path = settings.hook.socket
    sessions = Sessions(str(path or server_path()), linger_seconds=settings.hook.linger_seconds)
    inherited = listen_fds().get("hook")
    try:
        sessions.start(None if inherited is None else socket.socket(fileno=inherited))
    except SessionsError as error:
        if path:
            raise
        log.warning("training processes cannot report: %s", error)
        return None
    stack.callback(sessions.stop)
    return sessions
