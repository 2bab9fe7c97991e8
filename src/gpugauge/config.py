"""The settings: one model, from which the file's keys, the environment names, the flags and the reference are taken
(config_catalog.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

DEFAULT_PORT = 10478


class ListenAddress(NamedTuple):
    """Where to listen; an empty host means all interfaces, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(value: object) -> object:
    """Read `host:port`, `:port`, `[::1]:port` or `host`; raises ValueError on anything else."""
    if isinstance(value, ListenAddress):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError("an address is written host:port")
    host, colon, port = value.strip().rpartition(":")
    if not colon or value.strip().endswith("]"):
        host, port = value.strip(), str(DEFAULT_PORT)
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError("an IPv6 address with a port is written [address]:port")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port between 0 and 65535")
    return ListenAddress(host[1:-1] if bracketed else host, int(port))


def split_list(value: object) -> object:
    """Read `a,b` as a list, so that one line of text is enough in the environment and the file."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Address = Annotated[ListenAddress, BeforeValidator(parse_listen_address)]


class Section(BaseModel):
    """A group of settings: frozen, nothing unknown is taken."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WebConfig(Section):
    """Who may connect."""

    file: Path | None = Field(
        default=None,
        description="File with TLS certificates, client certificates and users, in the format that Prometheus' own "
        "programs read (docs/security.md); read again when it changes.",
    )


class Web(Section):
    """The HTTP side."""

    listen_address: Annotated[tuple[Address, ...], BeforeValidator(split_list)] = Field(
        default=(ListenAddress("127.0.0.1", DEFAULT_PORT),),
        min_length=1,
        description="Address to listen on, `host:port`, `[IPv6]:port` or `:port` for all interfaces.",
    )
    telemetry_path: str = Field(
        default="/metrics",
        pattern=r"^/[A-Za-z0-9._~/-]*[A-Za-z0-9_~]$",
        description="Path under which the metrics are served.",
    )
    max_connections: int = Field(
        default=512,
        ge=8,
        le=65536,
        description="Connections held at the same time. One more evicts the oldest that has not sent a request.",
    )
    config: WebConfig = WebConfig()
    enable_lifecycle: bool = Field(
        default=False,
        description="Serve what changes something by HTTP: `POST /-/reload`, `/-/release` and `/-/attach`.",
    )


class Log(Section):
    """Lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severity to log.")
    format: Literal["logfmt", "json"] = Field(default="logfmt", description="One line each: key=value, or JSON.")


class Driver(Section):
    """The GPU driver."""

    mode: Literal["auto", "off", "required"] = Field(
        default="auto",
        description="`auto` goes on without a driver and keeps trying, `off` never asks, `required` exits without one.",
    )
    devices: Annotated[tuple[str, ...], BeforeValidator(split_list)] = Field(
        default=(), description="Only these devices, by index or UUID; all when empty."
    )
    deadline_seconds: float = Field(
        default=2.0,
        ge=0.1,
        le=60,
        description="Longest time that one request to the driver may take before its worker process is replaced.",
    )
    worker_max_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=32 * 1024 * 1024,
        description="Resident memory past which the worker process is replaced by a fresh one: the driver's library "
        "may leak.",
    )
    worker_max_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Age at which the worker process is replaced by a fresh one; 0 means never.",
    )
    lost_exit_seconds: float = Field(
        default=0.0,
        ge=0,
        description="End the process with exit code 69 once a driver that has answered fails for this long, so that "
        "a container is started again with the new library; 0 means never. The image sets 300.",
    )


class Sampling(Section):
    """How often the daemon looks."""

    interval_seconds: float = Field(default=1.0, ge=0.1, le=60, description="Time between two snapshots.")
    stale_after_seconds: float = Field(
        default=10.0,
        ge=1,
        le=600,
        description="Age of a snapshot past which only the `gpugauge_` metrics are served; at least two intervals.",
    )

    @model_validator(mode="after")
    def _two_intervals(self) -> Sampling:
        if self.stale_after_seconds < 2 * self.interval_seconds:
            raise ValueError("stale_after_seconds must be at least twice interval_seconds")
        return self


class Hook(Section):
    """The socket to which training processes report."""

    socket: Path | None = Field(
        default=None,
        description="Path of the socket; when not set, `/run/gpugauge/hook.sock` for root, else under "
        "`$XDG_RUNTIME_DIR`.",
    )
    linger_seconds: float = Field(
        default=300.0,
        ge=0,
        le=3600,
        description="Time for which the counters of an ended training process stay, so that its last values are "
        "scraped.",
    )


class Verdict(Section):
    """Whether each training uses its GPUs, and if not, why."""

    stalled_seconds: float = Field(
        default=300.0,
        ge=5,
        le=86400,
        description="Time without a step or a batch after which a training is stalled, if ten of its own slow steps do "
        "not take longer.",
    )


class Process(Section):
    """Processes on devices."""

    max_per_device: int = Field(
        default=128, ge=1, le=10000, description="Processes shown for one device; the rest is summed up as `other`."
    )


class Paths(Section):
    """Where the kernel's file systems are mounted."""

    procfs: Path = Field(default=Path("/proc"), description="Mount point of procfs.")
    kmsg: Path = Field(
        default=Path("/dev/kmsg"),
        description="Kernel log: it tells of Xid errors that the driver leaves out. Reading it needs a right.",
    )
    sysfs: Path = Field(default=Path("/sys"), description="Mount point of sysfs.")
    pod_logs: Path = Field(
        default=Path("/var/log"),
        description="Folder whose `pods/` and `containers/` name the node's pods (the kubelet's log folders).",
    )


class Kubernetes(Section):
    """Which pods hold the devices; needs `gpugauge[kubernetes]`."""

    kubelet_socket: Path = Field(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="Socket of the kubelet's pod-resources service; where there is none, nothing is asked.",
    )
    resources: Annotated[tuple[str, ...], BeforeValidator(split_list)] = Field(
        default=("nvidia.com/",), description="Resources that are GPUs, by the beginning of their names."
    )


class Slurm(Section):
    """Which Slurm jobs hold the devices."""

    job_mapping_dir: Path | None = Field(
        default=None,
        description="Folder in which the prolog writes a file for each device with its job, as for dcgm-exporter.",
    )


class Collector(Section):
    """Which collectors run."""

    disable_defaults: bool = Field(default=False, description="Run only the collectors that are switched on by name.")
    device: bool = Field(default=True, description="The devices: identity, memory, power, temperature, clocks.")
    utilization: bool = Field(default=True, description="How busy the engines of the devices are.")
    profiling: bool = Field(default=True, description="How well the engines are used, where the card has GPM.")
    events: bool = Field(default=True, description="Xid errors and MIG changes.")
    clocks: bool = Field(default=True, description="Clocks, and what holds them down.")
    health: bool = Field(default=True, description="Memory errors, worn-out rows and pages, the recovery action.")
    links: bool = Field(default=True, description="PCIe and NVLink.")
    mig: bool = Field(default=True, description="MIG devices.")
    driver: bool = Field(default=True, description="What asking the driver costs, and what it refuses.")
    process: bool = Field(default=True, description="The processes on each device.")
    host: bool = Field(default=True, description="How processes on devices or with torch get on, seen from outside.")
    allocation: bool = Field(default=True, description="Which pod or job each device is given to, even while idle.")
    training: bool = Field(default=True, description="What training processes report through the hook.")
    verdict: bool = Field(default=True, description="Whether each training uses its GPUs, and if not, why.")

    def enabled(self) -> frozenset[str]:
        """Return the names of the collectors to run."""
        names = set(type(self).model_fields) - {"disable_defaults"}
        if self.disable_defaults:
            names &= self.model_fields_set
        return frozenset(name for name in names if getattr(self, name))


class Metrics(Section):
    """Which metrics are exported."""

    include: Annotated[tuple[str, ...], BeforeValidator(split_list)] = Field(
        default=(), description="Only these metrics, by name or shell pattern (`gpu_power_*`); all when empty."
    )
    exclude: Annotated[tuple[str, ...], BeforeValidator(split_list)] = Field(
        default=(), description="Not these metrics, by name or shell pattern; wins over include."
    )


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
    simulate: str | None = Field(
        default=None,
        description="Simulate the GPUs of this scenario (a name from `gpugauge scenarios`, or a file) instead of "
        "asking the driver.",
    )
