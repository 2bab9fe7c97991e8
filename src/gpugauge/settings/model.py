"""The settings, of which file, variables, flags and reference are derived; another process validates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpugauge.base import registry
from gpugauge.settings.kinds import (
    DEFAULT_PORT,
    PATH_PATTERN,
    RUNBOOK_URL,
    URL_PATTERN,
    Addresses,
    ListenAddress,
    Names,
    Seconds,
    Section,
    setting,
    with_switches,
)


@dataclass(frozen=True)
class WebConfig(Section):
    """TLS, client certificates and users."""

    file: Path | None = setting(
        default=None,
        description="Web configuration file: TLS, client certificates and users, in the format of Prometheus' "
        "exporter-toolkit (docs/security.md). It is read again when it changes.",
    )


@dataclass(frozen=True)
class Web(Section):
    """The HTTP server."""

    listen_address: Addresses = setting(
        default=(ListenAddress("127.0.0.1", DEFAULT_PORT),),
        min_length=1,
        description="Address to listen on: `host:port`, `[IPv6]:port`, or `:port` or `[::]:port` for all interfaces.",
    )
    telemetry_path: str = setting(default="/metrics", pattern=PATH_PATTERN, description="Path of the metrics.")
    max_connections: int = setting(
        default=512,
        within=(8, 65536),
        description="Maximum number of open connections. If a new connection exceeds this number, another connection "
        "is closed (docs/http.md).",
    )
    config: WebConfig = WebConfig()
    grafana_url: str = setting(
        default="",
        pattern=URL_PATTERN,
        description="Address of Grafana, for links from the page to the dashboards; no links without it.",
    )
    runbook_url: str = setting(
        default=RUNBOOK_URL,
        pattern=URL_PATTERN,
        description="Address of the runbook, for the links of the page's advice; no links if it is empty.",
    )
    enable_lifecycle: bool = setting(
        default=False,
        description="Enable the requests that change the daemon: `POST /-/reload`, `/-/release`, `/-/attach` and "
        "`/-/forget`.",
    )
    enable_dcgm: bool = setting(
        default=False,
        description="Serve GPU values under the names, labels and units of dcgm-exporter as well, at the telemetry "
        "path followed by `/dcgm`, for existing dashboards and OpenCost (docs/migrating.md).",
    )


@dataclass(frozen=True)
class Log(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        default="info", description="Lowest severity that is logged."
    )
    format: Literal["logfmt", "json"] = setting(
        default="logfmt", description="Form of each line: key=value pairs, or JSON."
    )


@dataclass(frozen=True)
class Driver(Section):
    """The GPU driver."""

    mode: Literal["auto", "off", "required"] = setting(
        default="auto",
        description="`auto` runs without a driver and keeps trying to open it, `off` never opens it, `required` exits "
        "if it cannot be opened.",
    )
    devices: Names = setting(default=(), description="GPUs to export, by index or UUID; all if empty.")
    deadline_seconds: Seconds = setting(
        default=2.0,
        within=(0.1, 60),
        description="Longest time that a call to the driver may take, twice as long while a GPU is read for the "
        "first time, which initialises it. If a call takes longer, the worker (the child process that calls the "
        "driver) is replaced.",
    )
    worker_max_bytes: int = setting(
        default=256 * 1024 * 1024,
        ge=32 * 1024 * 1024,
        description="Resident memory above which the worker process is replaced, because the driver's library may "
        "leak memory.",
    )
    worker_max_seconds: Seconds = setting(
        default=0.0, ge=0, description="Age at which the worker process is replaced by a new one; 0 means never."
    )
    lost_exit_seconds: Seconds = setting(
        default=0.0,
        ge=0,
        description="Exit with status 69 when a driver that worked before has failed for this long; 0 means never. "
        "The container is then started again with the new library. The image sets 300.",
    )
    state_file: Path | None = setting(
        default=None,
        description="File in which the GPUs are remembered, so that a GPU that is lost while the daemon does not run "
        "is still reported. Xid errors that are not repaired are in a file beside it. If not set, it is `gpus.json` in "
        "systemd's state directory, or in `/var/lib/gpugauge` if that folder exists and can be written; a simulated "
        "driver has none.",
    )
    forget_after_seconds: Seconds = setting(
        default=0.0,
        ge=0,
        description="Time after which a GPU that the driver does not list any more is no longer reported, as after "
        "`gpugauge forget`; 0 means never.",
    )


@dataclass(frozen=True)
class Sampling(Section):
    """The snapshots of the GPUs."""

    interval_seconds: Seconds = setting(
        default=1.0,
        within=(0.1, 60),
        description="Time between two snapshots (collections of all values) while requests are likely.",
    )
    idle_interval_seconds: Seconds = setting(
        default=5.0,
        within=(0.1, 5),
        description="Time between two snapshots while no request is likely. This is the case if all requests of the "
        "last 15 s came from scrapers with a regular period of more than about two intervals. A snapshot "
        "is also taken before each scrape that is expected from these scrapers. At most 5, because the "
        "driver keeps its samples for about 10 s.",
    )
    stale_after_seconds: Seconds = setting(
        default=10.0,
        within=(1, 600),
        description="Age of a snapshot above which only the `gpugauge_` metrics are served; at least two intervals.",
    )

    def __post_init__(self) -> None:
        if self.stale_after_seconds < 2 * self.interval_seconds:
            raise ValueError("stale_after_seconds must be at least twice interval_seconds")


@dataclass(frozen=True)
class Hook(Section):
    """The socket to which training processes report."""

    socket: Path | None = setting(
        default=None,
        description="Path of the socket to which training processes report. If not set, it is "
        "`/run/gpugauge/hook.sock` for root, and below `$XDG_RUNTIME_DIR` for other users.",
    )
    linger_seconds: Seconds = setting(
        default=300.0,
        within=(0, 3600),
        description="Time for which the counters of an ended training process are exported, so that its last values "
        "are scraped.",
    )
    last_scrape_seconds: Seconds = setting(
        default=0.0,
        within=(0, 3600),
        description="Longest time for which the daemon, after SIGTERM, waits for one more scrape by each of its "
        "scrapers, if a training process has reported; a second signal stops it at once. The sidecar sets 20.",
    )


@dataclass(frozen=True)
class Verdict(Section):
    """Whether each training uses its GPUs, and if not, why."""

    stalled_seconds: Seconds = setting(
        default=300.0,
        within=(5, 86400),
        description="Time without a step or a batch after which a training is reported as stalled. If ten of its own "
        "slow steps take longer, their time is used instead. In one evaluation, checkpoint, compilation or generation "
        "it is six times as long, also for the ranks that wait for it.",
    )
    enable_ras: bool = setting(
        default=False,
        description="Ask NCCL (RAS, 2.29.2 and newer) which ranks are behind or missing, while all GPUs of a training "
        "without the hook are busy and draw little power (docs/hangs.md).",
    )
    nccl_inspector_dir: Path | None = setting(
        default=None,
        description="Folder in which the plugin NCCL Inspector of the trainings writes its files `.prom`, for the "
        "bandwidth of their collectives and the cause `slow_network` (docs/hangs.md).",
    )


@dataclass(frozen=True)
class Faults(Section):
    """From which values on something is a fault of a GPU, for alerts, dashboards and views (docs/runbook.md)."""

    window_seconds: Seconds = setting(
        default=900.0,
        within=(60, 3600),
        description="Time over which rates of errors and shares are judged, and for which an Xid error of a program "
        "is shown as a fault.",
    )
    under_load_ratio: float = setting(
        default=0.2,
        gt=0,
        le=1,
        description="Share of the time in which a kernel runs from which a GPU is under load. The width of its PCIe "
        "link and its clocks are judged under load only.",
    )
    slowed_ratio: float = setting(
        default=0.2,
        gt=0,
        le=1,
        description="Share of the time from which clocks lowered by heat or a power brake are a fault.",
    )
    near_slowdown_celsius: float = setting(
        default=5.0,
        within=(0, 50),
        description="A GPU is hot from so many degrees below its slowdown temperature, where it lowers its clocks.",
    )
    nvlink_errors_per_second: float = setting(
        default=100.0,
        gt=0,
        description="Errors of one kind, corrected by the NVLinks of a GPU in a second, from which they are a fault.",
    )
    retired_pages: int = setting(
        default=60,
        within=(1, 64),
        description="Retired memory pages, of at most 64, from which a GPU should be replaced.",
    )


@dataclass(frozen=True)
class Process(Section):
    """Processes on GPUs."""

    max_per_device: int = setting(
        default=128,
        within=(1, 10000),
        description="Processes per GPU that have series of their own; the values of the others are added up as "
        "`other`.",
    )


@dataclass(frozen=True)
class Paths(Section):
    """Paths of the kernel's file systems and of logs."""

    procfs: Path = setting(default=Path("/proc"), description="Mount point of procfs.")
    kmsg: Path = setting(
        default=Path("/dev/kmsg"),
        description="Kernel log, for Xid errors that the driver does not report. Reading it needs CAP_SYSLOG.",
    )
    sysfs: Path = setting(default=Path("/sys"), description="Mount point of sysfs.")
    pod_logs: Path = setting(
        default=Path("/var/log"),
        description="Folder with the kubelet's log folders `pods/` and `containers/`. The names of pods are read "
        "from the file names there.",
    )
    state: Path | None = setting(
        default=None,
        description="File of at most 1 MB with what ended trainings used and lost, for `gpugauge report` without a "
        "database. If not set, it is `trainings.jsonl.gz` beside `driver.state_file`.",
    )

    def options(self) -> dict[str, str]:
        """Return the options with which a worker opens the driver."""
        return {"sysfs": str(self.sysfs), "procfs": str(self.procfs)}


@dataclass(frozen=True)
class Kubernetes(Section):
    """GPUs that are allocated to pods; needs `gpugauge[kubernetes]`."""

    kubelet_socket: Path = setting(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="Socket of the kubelet's pod-resources service. Without it no allocation is read.",
    )
    resources: Names = setting(
        default=("nvidia.com/", "amd.com/"), description="Prefixes of Kubernetes resources that are GPUs."
    )
    pod_info: Path | None = setting(
        default=None, description="In a sidecar: folder of a downwardAPI volume with name and labels of the pod."
    )
    pods: Literal["off", "kubelet", "api"] = setting(
        default="off",
        description="Where the owners and labels of this node's pods are read: from the node's kubelet, from the "
        "cluster's API, or nowhere (docs/attribution.md).",
    )
    node_address: str | None = setting(default=None, description="Address of the node, for `pods: kubelet`.")
    node_name: str | None = setting(
        default=None,
        description="Name of the node, for `pods: api`, the kubelet's certificate, and `Hostname` in `/metrics/dcgm`.",
    )
    service_account: Path = setting(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="Folder with the `token` and the `ca.crt` for the kubelet or the API.",
    )
    kubelet_ca_file: Path | None = setting(
        default=None,
        description="Certificates that sign that of the kubelet. If not set, `ca.crt` of the service account.",
    )
    kubelet_insecure_skip_verify: bool = setting(
        default=False, description="Accept every certificate of the kubelet: the token is sent unverified."
    )

    def __post_init__(self) -> None:
        for source, key in (("kubelet", "node_address"), ("api", "node_name")):
            if self.pods == source and not getattr(self, key):
                raise ValueError(f"pods: {source} needs {key}")


@dataclass(frozen=True)
class Slurm(Section):
    """GPUs that are allocated to Slurm jobs."""

    job_mapping_dir: Path | None = setting(
        default=None, description="Folder in which Slurm's prolog writes one file per GPU with its jobs."
    )


@with_switches({entry.name: entry.description for entry in registry.COLLECTORS})
@dataclass(frozen=True)
class Collector(Section):
    """Collectors that run."""

    disable_defaults: bool = setting(
        default=False, description="Run only the collectors that are enabled by their own setting."
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> bool:
            """The switch of the collector `name`."""


@dataclass(frozen=True)
class Metrics(Section):
    """Metrics that are exported."""

    preset: Literal["full", "lean"] = setting(
        default="full",
        description="`lean` exports only what the alert rules of gpugauge read, but gains and figures in their texts, "
        "and the basic values of each GPU: up to 25 series for a GPU and 21 for a process, and more with many faults "
        "or causes. `include` then adds to it.",
    )
    include: Names = setting(
        default=(),
        description="Metrics to export, by name or shell pattern (`gpu_power_*`); those of the preset if empty.",
    )
    exclude: Names = setting(
        default=(),
        description="Metrics to leave out of the scrapes, by name or shell pattern; takes precedence over include.",
    )


@dataclass(frozen=True)
class Settings(Section):
    """All settings."""

    web: Web = field(default_factory=Web)
    log: Log = Log()
    driver: Driver = Driver()
    sampling: Sampling = Sampling()
    hook: Hook = Hook()
    verdict: Verdict = Verdict()
    faults: Faults = Faults()
    process: Process = Process()
    path: Paths = Paths()
    kubernetes: Kubernetes = Kubernetes()
    slurm: Slurm = Slurm()
    collector: Collector = Collector()
    metrics: Metrics = Metrics()
    simulate: str | None = setting(
        default=None,
        description="Simulate the GPUs of a scenario instead of reading the driver: a name from `gpugauge scenarios`, "
        "or a file.",
    )
    given: frozenset[str] = field(default=frozenset(), init=False, compare=False)
    """The keys that are set, such as `path.pod_logs`. This is not a setting."""
    places: Mapping[str, str] = field(default_factory=dict, init=False, compare=False)
    """By key that is set, file and line, flag or variable, if they are known. This is not a setting."""

    def collectors(self) -> frozenset[str]:
        """Return the names of the collectors to run."""
        names = {entry.name for entry in registry.COLLECTORS}
        if self.collector.disable_defaults:
            names = {name for name in names if f"collector.{name}" in self.given}
        return frozenset(name for name in names if getattr(self.collector, name))
