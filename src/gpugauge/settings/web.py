"""The settings of the HTTP server and of the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpugauge.settings.kinds import (
    DEFAULT_PORT,
    RUNBOOK_URL,
    URL_PATTERN,
    Addresses,
    ListenAddress,
    Section,
    setting,
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
    telemetry_path: str = setting(
        default="/metrics", pattern=r"^/[A-Za-z0-9._~/-]*[A-Za-z0-9_~]$", description="Path of the metrics."
    )
    max_connections: int = setting(
        default=512,
        ge=8,
        le=65536,
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
