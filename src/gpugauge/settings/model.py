"""The settings: one model, from which the file's keys, the environment names, the flags and the reference are taken
(settings/options.py). Plain dataclasses: what checks them (settings/load.py) lives in another process than the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from gpugauge.settings.kinds import DEFAULT_PORT, Addresses, ListenAddress, Names, Section, setting


@dataclass(frozen=True)
class WebConfig(Section):
    """Who may connect."""

    file: Path | None = setting(
        default=None,
        description="File with TLS certificates, client certificates and users, in the format that Prometheus' own "
        "programs read (docs/security.md); read again when it changes.",
    )


@dataclass(frozen=True)
class Web(Section):
    """The HTTP side."""

    listen_address: Addresses = setting(
        default=(ListenAddress("127.0.0.1", DEFAULT_PORT),),
        min_length=1,
        description="Address to listen on, `host:port`, `[IPv6]:port` or `:port` for all interfaces.",
    )
    telemetry_path: str = setting(
        default="/metrics",
        pattern=r"^/[A-Za-z0-9._~/-]*[A-Za-z0-9_~]$",
        description="Path under which the metrics are served.",
    )
    max_connections: int = setting(
        default=512,
        ge=8,
        le=65536,
        description="Connections held at the same time. One more evicts the oldest that has not sent a request.",
    )
    config: WebConfig = WebConfig()
    enable_lifecycle: bool = setting(
        default=False,
        description="Serve what changes something by HTTP: `POST /-/reload`, `/-/release` and `/-/attach`.",
    )


@dataclass(frozen=True)
class Log(Section):
    """Lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(default="info", description="Least severity to log.")
    format: Literal["logfmt", "json"] = setting(default="logfmt", description="One line each: key=value, or JSON.")


@dataclass(frozen=True)
class Driver(Section):
    """The GPU driver."""

    mode: Literal["auto", "off", "required"] = setting(
        default="auto",
        description="`auto` goes on without a driver and keeps trying, `off` never asks, `required` exits without one.",
    )
    devices: Names = setting(default=(), description="Only these devices, by index or UUID; all when empty.")
    deadline_seconds: float = setting(
        default=2.0,
        ge=0.1,
        le=60,
        description="Longest time that one request to the driver may take before its worker process is replaced.",
    )
    worker_max_bytes: int = setting(
        default=256 * 1024 * 1024,
        ge=32 * 1024 * 1024,
        description="Resident memory past which the worker process is replaced by a fresh one: the driver's library "
        "may leak.",
    )
    worker_max_seconds: float = setting(
        default=0.0,
        ge=0,
        description="Age at which the worker process is replaced by a fresh one; 0 means never.",
    )
    lost_exit_seconds: float = setting(
        default=0.0,
        ge=0,
        description="End the process with exit code 69 once a driver that has answered fails for this long, so that "
        "a container is started again with the new library; 0 means never. The image sets 300.",
    )


@dataclass(frozen=True)
class Sampling(Section):
    """How often the daemon looks."""

    interval_seconds: float = setting(
        default=1.0, ge=0.1, le=60, description="Time between two snapshots while somebody looks."
    )
    idle_interval_seconds: float = setting(
        default=5.0,
        ge=0.1,
        le=5,
        description="Longest time between two snapshots while nobody looks, that is, while no scrape is expected at "
        "once and all that came in the last 15 s had a rhythm of more than two intervals. Just before each "
        "expected scrape there is a snapshot in any case. Not above 5: the driver keeps its samples for some 10 s.",
    )
    stale_after_seconds: float = setting(
        default=10.0,
        ge=1,
        le=600,
        description="Age of a snapshot past which only the `gpugauge_` metrics are served; at least two intervals.",
    )

    def __post_init__(self) -> None:
        if self.stale_after_seconds < 2 * self.interval_seconds:
            raise ValueError("stale_after_seconds must be at least twice interval_seconds")


@dataclass(frozen=True)
class Hook(Section):
    """The socket to which training processes report."""

    socket: Path | None = setting(
        default=None,
        description="Path of the socket; when not set, `/run/gpugauge/hook.sock` for root, else under "
        "`$XDG_RUNTIME_DIR`.",
    )
    linger_seconds: float = setting(
        default=300.0,
        ge=0,
        le=3600,
        description="Time for which the counters of an ended training process stay, so that its last values are "
        "scraped.",
    )


@dataclass(frozen=True)
class Verdict(Section):
    """Whether each training uses its GPUs, and if not, why."""

    stalled_seconds: float = setting(
        default=300.0,
        ge=5,
        le=86400,
        description="Time without a step or a batch after which a training is stalled, if ten of its own slow steps do "
        "not take longer.",
    )


@dataclass(frozen=True)
class Process(Section):
    """Processes on devices."""

    max_per_device: int = setting(
        default=128, ge=1, le=10000, description="Processes shown for one device; the rest is summed up as `other`."
    )


@dataclass(frozen=True)
class Paths(Section):
    """Where the kernel's file systems are mounted."""

    procfs: Path = setting(default=Path("/proc"), description="Mount point of procfs.")
    kmsg: Path = setting(
        default=Path("/dev/kmsg"),
        description="Kernel log: it tells of Xid errors that the driver leaves out. Reading it needs a right.",
    )
    sysfs: Path = setting(default=Path("/sys"), description="Mount point of sysfs.")
    pod_logs: Path = setting(
        default=Path("/var/log"),
        description="Folder whose `pods/` and `containers/` name the node's pods (the kubelet's log folders).",
    )


@dataclass(frozen=True)
class Kubernetes(Section):
    """Which pods hold the devices; needs `gpugauge[kubernetes]`."""

    kubelet_socket: Path = setting(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="Socket of the kubelet's pod-resources service; where there is none, nothing is asked.",
    )
    resources: Names = setting(
        default=("nvidia.com/",), description="Resources that are GPUs, by the beginning of their names."
    )


@dataclass(frozen=True)
class Slurm(Section):
    """Which Slurm jobs hold the devices."""

    job_mapping_dir: Path | None = setting(
        default=None,
        description="Folder in which the prolog writes a file for each device with its job, as for dcgm-exporter.",
    )


@dataclass(frozen=True)
class Collector(Section):
    """Which collectors run."""

    disable_defaults: bool = setting(default=False, description="Run only the collectors that are switched on by name.")
    device: bool = setting(default=True, description="The devices: identity, memory, power, temperature, clocks.")
    utilization: bool = setting(default=True, description="How busy the engines of the devices are.")
    profiling: bool = setting(default=True, description="How well the engines are used, where the GPU has GPM.")
    events: bool = setting(default=True, description="Xid errors and MIG changes.")
    clocks: bool = setting(default=True, description="Clocks, and what holds them down.")
    health: bool = setting(default=True, description="Memory errors, worn-out rows and pages, the recovery action.")
    links: bool = setting(default=True, description="PCIe and NVLink.")
    mig: bool = setting(default=True, description="MIG devices.")
    driver: bool = setting(default=True, description="What asking the driver costs, and what it refuses.")
    process: bool = setting(default=True, description="The processes on each device.")
    host: bool = setting(default=True, description="How processes on devices or with torch get on, seen from outside.")
    allocation: bool = setting(default=True, description="Which pod or job each device is given to, even while idle.")
    training: bool = setting(default=True, description="What training processes report through the hook.")
    verdict: bool = setting(default=True, description="Whether each training uses its GPUs, and if not, why.")


@dataclass(frozen=True)
class Metrics(Section):
    """Which metrics are exported."""

    include: Names = setting(
        default=(), description="Only these metrics, by name or shell pattern (`gpu_power_*`); all when empty."
    )
    exclude: Names = setting(default=(), description="Not these metrics, by name or shell pattern; wins over include.")


@dataclass(frozen=True)
class Settings(Section):
    """Everything that can be set."""

    web: Web = Web()
    log: Log = Log()
    driver: Driver = Driver()
    sampling: Sampling = Sampling()
    hook: Hook = Hook()
    verdict: Verdict = Verdict()
    process: Process = Process()
    path: Paths = Paths()
    kubernetes: Kubernetes = Kubernetes()
    slurm: Slurm = Slurm()
    collector: Collector = Collector()
    metrics: Metrics = Metrics()
    simulate: str | None = setting(
        default=None,
        description="Simulate the GPUs of this scenario (a name from `gpugauge scenarios`, or a file) instead of "
        "asking the driver.",
    )
    given: frozenset[str] = field(default=frozenset(), init=False, compare=False)
    """The keys that are not left to their defaults, `path.pod_logs`; no setting itself."""

    def collectors(self) -> frozenset[str]:
        """Return the names of the collectors to run."""
        names = {switch.name for switch in fields(Collector)} - {"disable_defaults"}
        if self.collector.disable_defaults:
            names = {name for name in names if f"collector.{name}" in self.given}
        return frozenset(name for name in names if getattr(self.collector, name))
