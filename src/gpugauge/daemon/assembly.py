"""What the daemon is made of: every part, made from the settings and put together. Nothing here decides to stop."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpugauge import catalog
from gpugauge.collectors.base import Collector
from gpugauge.collectors.device.clocks import ClocksCollector
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.collectors.device.health import HealthCollector
from gpugauge.collectors.device.kmsg import KernelLog
from gpugauge.collectors.device.links import LinksCollector
from gpugauge.collectors.device.mig import MigCollector
from gpugauge.collectors.device.profiling import ProfilingCollector
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.collectors.exporter.driver import DriverCollector
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.collectors.process.allocation import AllocationCollector
from gpugauge.collectors.process.host import HostCollector
from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.collectors.training.training import Heard, TrainingCollector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.daemon.activation import listen_fds
from gpugauge.daemon.lifecycle import lifecycle_routes
from gpugauge.daemon.reload import Reloader
from gpugauge.daemon.sampler import Sampler
from gpugauge.daemon.sdnotify import Notifier
from gpugauge.daemon.selection import Selection
from gpugauge.driver import nvidia
from gpugauge.driver.api import DriverView, Group, Reply
from gpugauge.driver.client import Worker
from gpugauge.driver.nvidia.bus import bound_devices
from gpugauge.driver.recycling import Limits
from gpugauge.driver.schedule import Pace
from gpugauge.driver.supervisor import DriverSource
from gpugauge.exposition.render import Exposition
from gpugauge.forecast import Timetable
from gpugauge.sessions.listener import Sessions, SessionsError
from gpugauge.sessions.session import Session
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.web.guard import own_names, own_names_only
from gpugauge.web.page.routes import page_routes
from gpugauge.web.routes import for_people, standard_routes
from gpugauge.web.server import Server
from gpugauge.web.status import PATH as STATUS_PATH
from gpugauge.web.status import status_route
from gpugauge.wire.messages import server_path
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

if TYPE_CHECKING:
    from gpugauge.simulator.simulation import Simulation
    from gpugauge.web.config.access import WebAccess

log = logging.getLogger("gpugauge")

# Seconds between two readings of a group, never less than the sampling interval: what costs more is read more rarely
# (docs/architecture.md). The sample rings wrap after some 10 s.
PACE: dict[Group, float] = {
    "fast": 1.0,
    "samples": 2.0,
    "profiling": 2.0,
    "normal": 5.0,
    "processes": 5.0,
    "mig": 5.0,
    "slow": 30.0,
}


def make_collectors(
    node: Procfs,
    sessions: Heard | None,
    host: Procfs,
    workloads: Workloads,
    kernel: KernelLog | None = None,
    max_processes: int = 128,
    stalled_seconds: float = 300.0,
    simulated: Callable[[Session], bool] = lambda _: False,
) -> list[Collector]:
    """Return one collector of each kind. `node` shows the processes that the driver lists, `workloads` tells who they
    are, `host` shows those that report through the hook: the same /proc, unless the node and some of the sessions are
    `simulated`. `kernel` is the log that tells Xid errors too.
    """
    utilization = UtilizationCollector()  # before the processes: they share out what it counted in the same tick
    training = (
        [TrainingCollector(sessions, lambda s: (node if simulated(s) else host).process_id(s.peer_pid))]
        if sessions
        else []
    )
    devices: list[Collector] = [DeviceCollector(), utilization, ProfilingCollector(), ClocksCollector()]
    devices += [HealthCollector(), EventsCollector(kernel), LinksCollector(), MigCollector()]
    processes: list[Collector] = [ProcessCollector(node, utilization.busy_seconds, workloads, max_processes)]
    processes += [HostCollector(node, workloads), AllocationCollector(workloads)]
    return [*devices, *processes, *training, DriverCollector(), VerdictCollector(stalled_seconds)]


class Parts:
    """All parts, made in the order in which they need each other, ended in reverse by the stack. Raises ConfigError
    (web.config.file, scenario), SelectionError or SessionsError.
    """

    def __init__(self, settings: Settings, stack: ExitStack, reloader: Reloader) -> None:
        procfs = Procfs(str(settings.path.procfs))
        simulation = _simulation(settings.simulate, stack) if settings.simulate else None
        self.settings, self._stack = settings, stack
        self.access = _access(settings.web.config.file) if settings.web.config.file else None
        timetable = Timetable()
        timetable.looked(time.monotonic())  # whoever starts a daemon looks at it
        self.driver = _driver(settings, simulation, timetable)
        selection = _selection(settings)
        real = self._open_sessions()
        simulated = simulation.sessions(real, settings.hook.linger_seconds) if simulation else None
        self._sessions = [heard for heard in (real, simulated) if heard]
        self.exposition = Exposition(settings.sampling.stale_after_seconds)
        self.notifier = Notifier()
        kernel = None if simulation else KernelLog(str(settings.path.kmsg))
        if kernel:
            stack.callback(kernel.close)
        node = simulation.procfs if simulation else procfs
        workloads = self._find_workloads(
            node, simulation.cgroup_root if simulation else settings.path.sysfs / "fs/cgroup"
        )
        self._collectors = make_collectors(
            node,
            simulated or real,
            procfs,
            workloads,
            kernel,
            settings.process.max_per_device,
            settings.verdict.stalled_seconds,
            simulated.owns if simulated else lambda _: False,
        )
        self.sampler = Sampler(
            self._enabled(settings),
            self._driver_news,
            self._publish,
            settings.sampling.interval_seconds,
            selection.of,
            ExporterCollector(lambda: self.access.last_reload if self.access else None, lambda: reloader.last),
            timetable,
            _idle(settings),
        )
        self._before_tick = simulation.update if simulation else lambda: None
        self._snapshot: Snapshot | None = None
        self._history = History()
        name = simulation.name if simulation else None
        telemetry_path = settings.web.telemetry_path
        hosts = [address.host for address in settings.web.listen_address]
        people = page_routes(lambda: self._snapshot, self._history, self._not_ready, telemetry_path, name)
        people[STATUS_PATH] = status_route(lambda: None if self._not_ready() else self._snapshot, self._history)
        people |= lifecycle_routes(
            self.driver, reloader.request, lambda: self.settings.web.enable_lifecycle, own_names(hosts)
        )
        routes = standard_routes(self.exposition, telemetry_path, self._not_ready, timetable)
        routes |= for_people(people, timetable)
        self.server = Server(
            settings.web.listen_address,
            own_names_only(routes, hosts),
            max_connections=settings.web.max_connections,
            access=self.access,
        )

    def configure(self, settings: Settings) -> None:
        """Go on with those of the settings that reload.LIVE names; no account is lost. Raises SelectionError, and then
        nothing has changed.
        """
        selection = _selection(settings)
        self.settings = settings
        self.sampler.configure(
            self._enabled(settings), settings.sampling.interval_seconds, _idle(settings), selection.of
        )
        self.exposition.stale_after = settings.sampling.stale_after_seconds
        for heard in self._sessions:
            heard.linger_seconds = settings.hook.linger_seconds
        for collector in self._collectors:
            if isinstance(collector, ProcessCollector):
                collector.max_per_device = settings.process.max_per_device
            elif isinstance(collector, VerdictCollector):
                collector.stalled_seconds = settings.verdict.stalled_seconds
        if self.driver:
            self.driver.configure(_pace(settings), settings.driver.devices, _limits(settings))

    def _enabled(self, settings: Settings) -> Sequence[Collector]:
        enabled = settings.collectors()
        return [collector for collector in self._collectors if collector.name in enabled]

    def _find_workloads(self, node: Procfs, cgroup_root: Path) -> Workloads:
        """Ask the orchestrators of this machine; a simulated one has none, but those that are set by name."""
        settings = self.settings
        real = settings.simulate is None
        asked = real or "kubernetes.kubelet_socket" in settings.given
        workloads = Workloads(
            node,
            cgroup_root=cgroup_root,
            kubelet_socket=settings.kubernetes.kubelet_socket if asked else None,
            kubelet_resources=settings.kubernetes.resources,
            job_mapping_dir=settings.slurm.job_mapping_dir,
            pod_logs=settings.path.pod_logs if real or "path.pod_logs" in settings.given else None,
        )
        workloads.start()
        self._stack.callback(workloads.stop)
        return workloads

    def _open_sessions(self) -> Sessions | None:
        """Listen for training processes; a default path that cannot be used costs only what they would tell."""
        given = self.settings.hook.socket
        sessions = Sessions(str(given or server_path()), linger_seconds=self.settings.hook.linger_seconds)
        inherited = listen_fds().get("hook")
        try:
            sessions.start(None if inherited is None else socket.socket(fileno=inherited))
        except SessionsError as error:
            if given:
                raise
            log.warning("training processes cannot report: %s", error)
            return None
        self._stack.callback(sessions.stop)
        return sessions

    def _driver_news(self) -> tuple[DriverView, tuple[Reply, ...]]:
        self._before_tick()
        return (self.driver.view(), self.driver.drain()) if self.driver else (DriverView(False, "off"), ())

    def _publish(self, snapshot: Snapshot) -> None:
        first = self.exposition.age(snapshot.monotonic) is None
        self.exposition.publish(snapshot)
        self._snapshot = snapshot
        self._history.feed(snapshot)
        if first:
            self.notifier.ready()

    def _not_ready(self) -> str | None:
        age = self.exposition.age(time.monotonic())
        if age is None:
            return "there is no snapshot yet"
        limit = self.settings.sampling.stale_after_seconds
        return f"the last snapshot is {age:.0f} s old" if age > limit else None


def _simulation(name: str, stack: ExitStack) -> Simulation:
    from gpugauge.simulator.simulation import Simulation  # noqa: PLC0415  (a real node carries neither simulator nor models)

    return Simulation(name, stack)


def _access(file: Path) -> WebAccess:
    from gpugauge.web.config.access import WebAccess  # noqa: PLC0415  (without such a file none of it is loaded)

    return WebAccess(file)


def _selection(settings: Settings) -> Selection:
    names = [row.name for row in catalog.metrics()]
    return Selection(names, settings.metrics.include, settings.metrics.exclude)


def _pace(settings: Settings) -> Pace:
    interval = settings.sampling.interval_seconds
    return Pace(
        {group: max(seconds, interval) for group, seconds in PACE.items()},
        deadline=settings.driver.deadline_seconds,
        idle=_idle(settings),
    )


def _idle(settings: Settings) -> float:
    """Seconds between two snapshots while nobody looks; a snapshot must not grow stale before the next."""
    return min(settings.sampling.idle_interval_seconds, settings.sampling.stale_after_seconds / 2)


def _limits(settings: Settings) -> Limits:
    return Limits(settings.driver.worker_max_bytes, settings.driver.worker_max_seconds)


def _driver(settings: Settings, simulation: Simulation | None, timetable: Timetable) -> DriverSource | None:
    if settings.driver.mode == "off":
        return None
    return DriverSource(
        _pace(settings),
        partial(Worker, simulation.worker if simulation else nvidia.WORKER),
        simulation.driver() if simulation else None,
        devices=settings.driver.devices,
        limits=_limits(settings),
        bus=simulation.devices if simulation else lambda: bound_devices(settings.path.procfs),
        timetable=timetable,
    )
