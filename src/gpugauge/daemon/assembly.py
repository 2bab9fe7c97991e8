"""Assembly of the daemon: creates all parts from the settings and connects them."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpugauge import catalog
from gpugauge.base import guard
from gpugauge.base.forecast import ScrapeForecast
from gpugauge.base.logline import Condition
from gpugauge.collectors.base import RegisteredCollector, Sources
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.daemon.lifecycle import lifecycle_routes
from gpugauge.daemon.machine import Machine, pod_metadata, real_machine, simulated_machine
from gpugauge.daemon.reload import Reloader
from gpugauge.daemon.sampler import Sampler
from gpugauge.daemon.selection import Selection
from gpugauge.daemon.systemd import Notifier
from gpugauge.daemon.trainings import PATH as TRAININGS_PATH
from gpugauge.daemon.trainings import TrainingsFile
from gpugauge.driver.api import DriverView, Group, Reply
from gpugauge.driver.client import Spawn, Worker
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.recycling import RecyclingLimits
from gpugauge.driver.remembered import StateFile, host_digest, machine_id
from gpugauge.driver.supervisor import Supervisor
from gpugauge.exposition.render import Exposition
from gpugauge.faults.repair import Site, site
from gpugauge.sessions.listener import Sessions
from gpugauge.sessions.session import Session
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Snapshot
from gpugauge.web.guard import own_names, own_names_only
from gpugauge.web.refresh import Refresh
from gpugauge.web.routes import FOR_PEOPLE, dcgm_route, for_people, late, standard_routes
from gpugauge.web.server import Route, Server
from gpugauge.workload.controllers import Pod
from gpugauge.workload.podinfo import PodInfoError, read_pod
from gpugauge.workload.workloads import Workloads

if TYPE_CHECKING:
    from gpugauge.status.history import History
    from gpugauge.web.config.access import WebAccess

log = logging.getLogger("gpugauge")
_DOCKER_CONTAINERS = Path("/var/lib/docker/containers")

# Seconds between two readings of a group, and at least the sampling interval: expensive groups are read less often
# (docs/architecture.md). The driver's sample rings wrap after about 10 s.
READING_INTERVALS: dict[Group, float] = {
    "fast": 1.0,
    "samples": 2.0,
    "profiling": 2.0,
    "normal": 5.0,
    "processes": 5.0,
    "mig": 5.0,
    "slow": 30.0,
}


class Parts:
    """All parts; the stack ends them in reverse order. Raises ConfigError or SessionsError."""

    def __init__(self, settings: Settings, stack: ExitStack, reloader: Reloader, spawn: Spawn = Worker) -> None:
        self.settings = settings
        self.access: WebAccess | None = None
        if file := settings.web.config.file:
            from gpugauge.web.config.access import WebAccess  # noqa: PLC0415  (not loaded without that file)

            self.access = WebAccess(file)
        self._selection = _selection(settings)
        self._scheme = "https" if self.access and self.access.tls else "http"
        scenario = settings.simulate
        machine = simulated_machine(settings, scenario, stack) if scenario else real_machine(settings, stack)
        self._site = lambda: site(self.settings, self._scheme, machine.cgroup_root)
        self._session_sources, self._update_machine = machine.session_sources, machine.update
        self._hook = next((source for source in machine.session_sources if isinstance(source, Sessions)), None)
        self.forecast = forecast = ScrapeForecast()
        forecast.record_viewer(time.monotonic())  # a person who starts the daemon is likely to request its metrics
        self.driver = _supervisor(settings, machine, forecast, spawn)
        self.exposition = Exposition(settings.sampling.stale_after_seconds)
        self.notifier = Notifier()
        self._snapshot: Snapshot | None = None
        self._collectors = catalog.create_collectors(_node(machine, settings, stack, self._site), settings)
        self.sampler = Sampler(
            self._enabled(settings),
            self._read_driver,
            self._publish,
            settings.sampling.interval_seconds,
            ExporterCollector(
                lambda: self.access.last_reload if self.access else None,
                lambda: reloader.last,
                lambda: self._hook.receiver_pid() if self._hook else None,
            ),
            forecast,
            _idle_interval(settings),
            after_readings=self.driver is not None,
        )
        if self.driver:
            self.driver.on_reading = self.sampler.wake
        self._read_at = -math.inf  # begin of the last reading in the current snapshot, monotonic seconds
        self._refresh = Refresh(self.driver.request_reading if self.driver else self.sampler.wake, forecast)
        state, beside = settings.path.state, machine.state_file
        self.trainings = TrainingsFile(
            state or (beside and beside.with_name("trainings.jsonl.gz")), lambda: self._snapshot
        )
        self.server = self._create_server(machine, forecast, reloader)
        self._open_lifecycle = Condition(log)
        self._check_lifecycle()

    def configure(self, settings: Settings) -> None:
        """Apply the settings that `reload.LIVE` lists. Raises ConfigError, and then nothing has changed."""
        selection = _selection(settings)
        self.settings = settings
        self._check_lifecycle()
        self._selection = selection
        self.sampler.configure(self._enabled(settings), settings.sampling.interval_seconds, _idle_interval(settings))
        self.exposition.stale_after = settings.sampling.stale_after_seconds
        for source in self._session_sources:
            source.linger_seconds = settings.hook.linger_seconds
        for collector in self._collectors:
            collector.configure(settings)
        if self.driver:
            self.driver.configure(
                _reading_intervals(settings),
                settings.driver.devices,
                _recycling_limits(settings),
                settings.driver.forget_after_seconds,
            )

    def _check_lifecycle(self) -> None:
        """Warn if every client may use the lifecycle endpoints."""
        if self.settings.web.enable_lifecycle and (self.access is None or not self.access.identifies):
            self._open_lifecycle.failing(
                "web.enable_lifecycle without users or client certificates: every client that reaches the port may "
                "reload the settings and release the driver; set web.config.file"
            )
        else:
            self._open_lifecycle.recovered("the lifecycle endpoints are closed to unknown clients")

    def _enabled(self, settings: Settings) -> Sequence[RegisteredCollector]:
        enabled = settings.collectors()
        return [collector for collector in self._collectors if collector.name in enabled]

    def _create_server(self, machine: Machine, forecast: ScrapeForecast, reloader: Reloader) -> Server:
        web, hosts = self.settings.web, [address.host for address in self.settings.web.listen_address]
        people = late(FOR_PEOPLE, partial(self._routes_for_people, self.settings, machine)) | lifecycle_routes(
            self.driver, reloader.request, lambda: self.settings.web.enable_lifecycle, own_names(hosts)
        )
        people[TRAININGS_PATH] = self.trainings.route()
        routes = standard_routes(
            self.exposition, web.telemetry_path, self._not_ready, forecast, self._note, self._refresh
        )
        if web.enable_dcgm:
            node = self.settings.kubernetes.node_name or socket.gethostname()  # in a pod, that is the pod's
            routes[f"{web.telemetry_path}/dcgm"] = dcgm_route(
                lambda: self._snapshot, self._not_ready, node, forecast, self._refresh
            )
        routes |= for_people(people, forecast)
        return Server(
            web.listen_address, own_names_only(routes, hosts), max_connections=web.max_connections, access=self.access
        )

    @cached_property
    def _history(self) -> History:
        from gpugauge.status.history import History  # noqa: PLC0415  (loaded after the first page)

        made: History = self.__dict__.setdefault("_history", History())  # one for the threads of sampler and server
        return made

    def _routes_for_people(self, settings: Settings, machine: Machine) -> dict[str, Route]:
        from gpugauge.daemon.people import routes  # noqa: PLC0415  (loaded for the first request)

        return routes(settings, machine, self._history, lambda: self._snapshot, self._not_ready, self._site)

    def _read_driver(self) -> tuple[DriverView, tuple[Reply, ...]]:
        """Return the state of the driver and the replies since the last tick."""
        self._update_machine()
        if self.driver is None:
            self._read_at = time.monotonic()
            return DriverView(False, "off"), ()
        self._read_at = self.driver.read_at
        return self.driver.view(), self.driver.drain()

    def _publish(self, snapshot: Snapshot) -> None:
        first = self.exposition.age(snapshot.monotonic) is None
        # The page and its status need families that an operator may leave out of the scrapes.
        self.exposition.publish(self._selection.of(snapshot))
        self._refresh.publish(self._read_at, time.monotonic())
        self._snapshot = snapshot
        self._history.feed(snapshot)
        if first:
            self.notifier.ready()

    def _note(self) -> str:
        failing = ", ".join(thread.name for thread in guard.failed() if thread.failing)
        return f"threads fail, see the log: {failing}" if failing else self._hook.trouble() if self._hook else ""

    def sessions(self) -> list[Session]:
        """Return the training processes that are exported."""
        return [session for source in self._session_sources for session in source.view()]

    def _not_ready(self) -> str | None:
        age = self.exposition.age(time.monotonic())
        if age is None:
            return "there is no snapshot yet"
        limit = self.settings.sampling.stale_after_seconds
        return f"the last snapshot is {age:.0f} s old" if age > limit else None


def _node(machine: Machine, settings: Settings, stack: ExitStack, place: Callable[[], Site]) -> Sources:
    """Return the sources of the collectors; starts to query the orchestrators."""
    own_pod, metadata = _own_pod(settings.kubernetes.pod_info), pod_metadata(settings.kubernetes)
    on_host = None
    if machine.host_procfs:  # trainings that report to a simulated node are real processes
        on_host = Workloads(machine.host_procfs, pod_logs=settings.path.pod_logs, own_pod=own_pod, metadata=metadata)
    workloads = Workloads(
        machine.procfs,
        cgroup_root=machine.cgroup_root,
        kubelet_socket=machine.kubelet_socket,
        kubelet_resources=settings.kubernetes.resources,
        job_mapping_dir=settings.slurm.job_mapping_dir,
        pod_logs=machine.pod_logs,
        own_pod=own_pod,
        docker_containers=None if machine.scenario else _DOCKER_CONTAINERS,
        metadata=None if on_host else metadata,
        besides=on_host,
    )
    for each in {workloads, on_host or workloads}:
        each.start()
        stack.callback(each.stop)
    return Sources(
        machine.procfs,
        workloads,
        sessions=machine.session_sources[-1] if machine.session_sources else None,
        session_workloads=lambda s: workloads if machine.session_procfs(s) is machine.procfs else on_host or workloads,
        kernel_log=machine.kernel_log,
        fault_file=state.with_name(f"{state.stem}-xids.json") if (state := machine.state_file) else None,
        boot=machine.scenario or host_digest(settings.path.procfs),
        site=place,
    )


def _own_pod(folder: Path | None) -> Pod | None:
    """Return the pod of this sidecar, None if the daemon is none, or if its description cannot be read."""
    if folder is None:
        return None
    try:
        return read_pod(folder)
    except PodInfoError as error:
        log.warning("the pod of this sidecar is not known, and so its job: %s", error)
        return None


def _supervisor(settings: Settings, machine: Machine, forecast: ScrapeForecast, spawn: Spawn) -> Supervisor | None:
    if settings.driver.mode == "off":
        return None
    return Supervisor(
        _reading_intervals(settings),
        lambda: spawn(machine.worker_module()),
        machine.simulated_driver,
        devices=settings.driver.devices,
        limits=_recycling_limits(settings),
        bus=machine.bound_devices,
        forecast=forecast,
        pci=machine.bus_devices,
        is_suspended=machine.is_suspended,
        state_file=StateFile(machine.state_file, machine.scenario or machine_id()),
        forget_after=settings.driver.forget_after_seconds,
        host="" if machine.scenario else host_digest(settings.path.procfs),
        vendor=machine.vendor,
        paths=settings.path.options(),
    )


def check(settings: Settings) -> list[ConfigError]:
    """Return why the daemon cannot start with settings that are valid: for what they and the files that they name say.
    The real machine is not looked at.
    """
    from gpugauge.simulator.scenario.load import load_scenario  # noqa: PLC0415  (not loaded by the daemon)
    from gpugauge.web.config.access import WebAccess  # noqa: PLC0415  (not loaded without that file)

    file, scenario = settings.web.config.file, settings.simulate
    parts: list[Callable[[], object]] = [partial(_selection, settings)]
    parts += [partial(WebAccess, file)] if file else []
    parts += [partial(load_scenario, scenario)] if scenario else []
    return [error for part in parts if (error := _error(part))]


def _error(part: Callable[[], object]) -> ConfigError | None:
    try:
        part()
    except ConfigError as error:
        return error
    return None


def _selection(settings: Settings) -> Selection:
    names = [row.name for row in catalog.metrics()]
    metrics = settings.metrics
    return Selection(names, metrics.include, metrics.exclude, metrics.preset, settings.places)


def _reading_intervals(settings: Settings) -> ReadingIntervals:
    interval = settings.sampling.interval_seconds
    return ReadingIntervals(
        {group: max(seconds, interval) for group, seconds in READING_INTERVALS.items()},
        deadline=settings.driver.deadline_seconds,
        idle=_idle_interval(settings),
    )


def _idle_interval(settings: Settings) -> float:
    """Return the seconds between two snapshots without requests; no snapshot is stale before the next."""
    return min(settings.sampling.idle_interval_seconds, settings.sampling.stale_after_seconds / 2)


def _recycling_limits(settings: Settings) -> RecyclingLimits:
    return RecyclingLimits(settings.driver.worker_max_bytes, settings.driver.worker_max_seconds)
