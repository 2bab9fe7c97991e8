"""The daemon: puts the parts together, runs until it is told to stop, and takes them apart again."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from gpugauge import __version__, catalog
from gpugauge.activation import listen_fds
from gpugauge.collectors.allocation import AllocationCollector
from gpugauge.collectors.base import Collector
from gpugauge.collectors.clocks import ClocksCollector
from gpugauge.collectors.device import DeviceCollector
from gpugauge.collectors.driver import DriverCollector
from gpugauge.collectors.events import EventsCollector
from gpugauge.collectors.health import HealthCollector
from gpugauge.collectors.host import HostCollector
from gpugauge.collectors.kmsg import KernelLog
from gpugauge.collectors.links import LinksCollector
from gpugauge.collectors.mig import MigCollector
from gpugauge.collectors.process import ProcessCollector
from gpugauge.collectors.profiling import ProfilingCollector
from gpugauge.collectors.training import Heard, TrainingCollector
from gpugauge.collectors.utilization import UtilizationCollector
from gpugauge.collectors.verdict import VerdictCollector
from gpugauge.config import Settings
from gpugauge.driver.api import DriverView, Group, Reply
from gpugauge.driver.simulated.procfs import ProcTree
from gpugauge.driver.simulated.scenario import Scenario, load_scenario
from gpugauge.driver.simulated.trainings import SimulatedSessions
from gpugauge.driver.source import ADVICE, DriverSource, Pace
from gpugauge.exposition import Exposition
from gpugauge.history import History
from gpugauge.logs import fields
from gpugauge.page.routes import page_routes
from gpugauge.routes import standard_routes
from gpugauge.sampler import Sampler
from gpugauge.sdnotify import Notifier
from gpugauge.selection import Selection
from gpugauge.server import Server
from gpugauge.sessions import Sessions, SessionsError
from gpugauge.snapshot import Snapshot
from gpugauge.status import PATH as STATUS_PATH
from gpugauge.status import status_route
from gpugauge.wire import server_path
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads

log = logging.getLogger("gpugauge")

# A sampler that has not ticked for this long will not: the process ends, and whoever started it starts another.
_DEAD_SECONDS = 60.0
_EXIT_DEAD = 70  # EX_SOFTWARE
# How long the first snapshot waits for the driver, so that a first scrape is complete.
_PATIENCE_SECONDS = 3.0

# Seconds between two readings of a group, never less than the sampling interval: what costs more is read more rarely
# (docs/architecture.md). The sample rings wrap after some 10 s.
_PACE: dict[Group, float] = {
    "fast": 1.0,
    "samples": 2.0,
    "profiling": 2.0,
    "normal": 5.0,
    "processes": 5.0,
    "mig": 5.0,
    "slow": 30.0,
}


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ListenError, ScenarioError, SelectionError
    or SessionsError.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Each training process and each scraper holds a descriptor; the default soft limit of 1024 is for select(2).
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, hard) if hard != resource.RLIM_INFINITY else 65536, hard))
    # The threads hold the interpreter for the milliseconds of a tick; a scrape should not wait a whole default turn.
    sys.setswitchinterval(0.001)
    with ExitStack() as stack:
        return _Daemon(settings, stack).run(stop)


def make_collectors(
    node: Procfs,
    sessions: Heard | None,
    host: Procfs,
    workloads: Workloads,
    kernel: KernelLog | None = None,
    max_processes: int = 128,
    stalled_seconds: float = 300.0,
) -> list[Collector]:
    """Return one collector of each kind. `node` shows the processes that the driver lists, `workloads` tells who they
    are, `host` shows those that report through the hook: the same /proc, unless the node is simulated. `kernel` is the
    log that tells Xid errors too.
    """
    utilization = UtilizationCollector()  # before the processes: they share out what it counted in the same tick
    simulated = sessions.owns if isinstance(sessions, SimulatedSessions) else lambda _: False
    training = (
        [TrainingCollector(sessions, lambda s: (node if simulated(s) else host).process_id(s.peer_pid))]
        if sessions
        else []
    )
    cards: list[Collector] = [DeviceCollector(), utilization, ProfilingCollector(), ClocksCollector()]
    cards += [HealthCollector(), EventsCollector(kernel), LinksCollector(), MigCollector()]
    processes: list[Collector] = [ProcessCollector(node, utilization.busy_seconds, workloads, max_processes)]
    processes += [HostCollector(node, workloads), AllocationCollector(workloads)]
    return [*cards, *processes, *training, DriverCollector(), VerdictCollector(stalled_seconds)]


class _Daemon:
    """All parts, made in the order in which they need each other, ended in reverse by the stack."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        scenario = load_scenario(settings.simulate) if settings.simulate else None
        procfs = Procfs(str(settings.path.procfs))
        simulated = _SimulatedProc(scenario, stack) if scenario else None
        self._settings, self._stack = settings, stack
        self._driver = _driver(settings, scenario)
        names = [row.name for row in catalog.metrics()]
        selection = Selection(names, settings.metrics.include, settings.metrics.exclude)
        sessions: Heard | None = self._open_sessions()
        if scenario:
            sessions = SimulatedSessions(scenario, sessions, settings.hook.linger_seconds)
        self._exposition = Exposition(settings.sampling.stale_after_seconds)
        self._notifier = Notifier()
        self._last_tick = time.monotonic()
        kernel = None if simulated else KernelLog(str(settings.path.kmsg))
        if kernel:
            stack.callback(kernel.close)
        node = simulated.procfs if simulated else procfs
        workloads = self._find_workloads(
            node, simulated.cgroup_root if simulated else settings.path.sysfs / "fs/cgroup"
        )
        collectors = make_collectors(
            node,
            sessions,
            procfs,
            workloads,
            kernel,
            settings.process.max_per_device,
            settings.verdict.stalled_seconds,
        )
        enabled = settings.collector.enabled()
        self._sampler = Sampler(
            [collector for collector in collectors if collector.name in enabled],
            self._driver_news,
            self._publish,
            settings.sampling.interval_seconds,
            selection.of,
        )
        self._before_tick = simulated.update if simulated else lambda: None
        self._snapshot: Snapshot | None = None
        self._history = History()
        name = scenario.name if scenario else None
        telemetry_path = settings.web.telemetry_path
        routes = standard_routes(self._exposition, telemetry_path, self._not_ready)
        routes |= page_routes(lambda: self._snapshot, self._history, self._not_ready, telemetry_path, name)
        routes[STATUS_PATH] = status_route(lambda: None if self._not_ready() else self._snapshot, self._history)
        self._server = Server(settings.web.listen_address, routes, max_connections=settings.web.max_connections)

    def _find_workloads(self, node: Procfs, cgroup_root: Path) -> Workloads:
        """Ask the orchestrators of this machine; a simulated one has none, but those that are set by name."""
        settings = self._settings
        real = settings.simulate is None
        asked = real or "kubelet_socket" in settings.kubernetes.model_fields_set
        workloads = Workloads(
            node,
            cgroup_root=cgroup_root,
            kubelet_socket=settings.kubernetes.kubelet_socket if asked else None,
            kubelet_resources=settings.kubernetes.resources,
            job_mapping_dir=settings.slurm.job_mapping_dir,
            pod_logs=settings.path.pod_logs if real or "pod_logs" in settings.path.model_fields_set else None,
        )
        workloads.start()
        self._stack.callback(workloads.stop)
        return workloads

    def _open_sessions(self) -> Sessions | None:
        """Listen for training processes; a default path that cannot be used costs only what they would tell."""
        given = self._settings.hook.socket
        sessions = Sessions(str(given or server_path()), linger_seconds=self._settings.hook.linger_seconds)
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

    def run(self, stop: threading.Event) -> int:
        self._server.start()
        self._stack.callback(self._server.stop)
        if self._driver:
            self._driver.start()
            self._stack.callback(self._driver.stop)
            if not self._wait_for_driver(self._driver, stop):
                return 1
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        listening = ", ".join(f"{host}:{port}" for host, port in self._server.addresses)
        log.info(
            "serving", extra=fields(version=__version__, listen=listening, simulate=self._settings.simulate or "no")
        )
        self._sampler.run(stop, self._alive)
        log.info("stopping")
        self._notifier.stopping()
        return 0

    def _wait_for_driver(self, driver: DriverSource, stop: threading.Event) -> bool:
        """Give the driver a moment, with driver.mode=required all it takes; False if it must answer but does not."""
        required = self._settings.driver.mode == "required"
        start = time.monotonic()
        while not driver.settled.wait(0.05) and not stop.is_set():
            if not required and time.monotonic() - start > _PATIENCE_SECONDS:
                break
        reason = driver.view().reason
        if required and reason != "ok" and not stop.is_set():
            log.error("driver.mode=required: %s", ADVICE.get(reason, reason), extra=fields(reason=reason))
            return False
        return True

    def _driver_news(self) -> tuple[DriverView, tuple[Reply, ...]]:
        self._before_tick()
        return (self._driver.view(), self._driver.drain()) if self._driver else (DriverView(False, "off"), ())

    def _publish(self, snapshot: Snapshot) -> None:
        first = self._exposition.age(snapshot.monotonic) is None
        self._exposition.publish(snapshot)
        self._snapshot = snapshot
        self._history.feed(snapshot)
        if first:
            self._notifier.ready()

    def _alive(self) -> None:
        self._last_tick = time.monotonic()
        self._notifier.watchdog()

    def _not_ready(self) -> str | None:
        age = self._exposition.age(time.monotonic())
        if age is None:
            return "there is no snapshot yet"
        limit = self._settings.sampling.stale_after_seconds
        return f"the last snapshot is {age:.0f} s old" if age > limit else None

    def _watch(self) -> None:
        """End the process when the sampler is stuck: fresh values will not come back by themselves."""
        seen, waited = self._last_tick, 0
        while True:
            time.sleep(1.0)
            # Counted in own rounds: a process that was stopped and goes on has not been stuck.
            waited = waited + 1 if self._last_tick == seen else 0
            seen = self._last_tick
            if waited > max(_DEAD_SECONDS, 3 * self._settings.sampling.interval_seconds):
                log.critical("the sampler is stuck, ending the process", extra=fields(seconds=_DEAD_SECONDS))
                faulthandler.dump_traceback()
                os._exit(_EXIT_DEAD)


class _SimulatedProc:
    """The scenario's processes as a proc file system of their own, so that reading them is no special case."""

    def __init__(self, scenario: Scenario, stack: ExitStack) -> None:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpugauge-proc-")))
        self._tree = ProcTree(root, scenario)
        self.update()
        self.procfs = Procfs(str(root))
        self.cgroup_root = self._tree.cgroup_root

    def update(self) -> None:
        self._tree.update(time.monotonic())


def _driver(settings: Settings, scenario: Scenario | None) -> DriverSource | None:
    if settings.driver.mode == "off":
        return None
    interval = settings.sampling.interval_seconds
    pace = Pace(
        {group: max(seconds, interval) for group, seconds in _PACE.items()},
        deadline=settings.driver.deadline_seconds,
    )
    chosen = set(settings.driver.devices)
    return DriverSource(
        pace,
        scenario.simulation() if scenario else None,
        allowed=lambda index, uuid: not chosen or str(index) in chosen or uuid in chosen,
    )
