"""The model of the web configuration file, with the keys that Prometheus documents.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpugauge.base.duration import parse_duration

_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_BCRYPT_COSTS = range(4, 17)


def _hash(value: object) -> object:
    """Return a bcrypt hash as it is. Raises ValueError, which never shows the value."""
    found = _BCRYPT.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError("expected a bcrypt hash: $2y$10$ and 53 characters (htpasswd -nBC 10 NAME creates one)")
    if int(found[1]) not in _BCRYPT_COSTS:
        raise ValueError(f"cost {int(found[1])} is not from 4 to 16; 10 to 12 is usual, and each step doubles the time")
    return value


def _header(value: object) -> object:
    """Return the text of a header; `0` is a number in YAML. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.isascii() or not all(c.isprintable() for c in value):
        raise ValueError("expected one line of plain ASCII text")
    return value


HashText = Annotated[str, BeforeValidator(_hash)]
HeaderText = Annotated[str, BeforeValidator(_header)]
# Templates write "" for a key that is not set.
PemFile = Annotated[Path | None, BeforeValidator(lambda value: None if value == "" else value)]
Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",  # the former spelling of RequireAnyClientCert
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]


class Section(BaseModel):
    """A group of keys. It is frozen and has no other keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TlsServer(Section):
    """`tls_server_config`; paths are as in the file."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: PemFile = None
    key_file: PemFile = None
    client_ca_file: PemFile = None
    client_auth_type: Annotated[ClientAuth, BeforeValidator(lambda value: value or "NoClientCert")] = "NoClientCert"
    client_allowed_sans: tuple[str, ...] | None = None
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[Literal["CurveP256", "CurveP384", "CurveP521", "X25519"], ...] = ()


class Headers(Section):
    """`http_server_config.headers`: the headers that may be set. An empty one is not sent."""

    content_security_policy: HeaderText = Field(default="", alias="Content-Security-Policy")
    x_frame_options: Literal["", "deny", "sameorigin"] = Field(default="", alias="X-Frame-Options")
    x_content_type_options: Literal["", "nosniff"] = Field(default="", alias="X-Content-Type-Options")
    x_xss_protection: HeaderText = Field(default="", alias="X-XSS-Protection")
    strict_transport_security: HeaderText = Field(default="", alias="Strict-Transport-Security")


class HttpServer(Section):
    """`http_server_config`. `http2` has no effect: this server speaks HTTP/1.1, which every client supports."""

    http2: bool = True
    headers: Headers = Headers()


class RateLimit(Section):
    """`rate_limit`: one request per `interval` seconds, and up to `burst` at once; 0 is without a limit."""

    # Such as 1m30s; a number without a unit can only be 0.
    interval: Annotated[float, BeforeValidator(lambda value: parse_duration(str(value)))] = 0.0
    burst: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _some_may_pass(self) -> RateLimit:
        if self.interval and not self.burst:
            raise ValueError("with an interval, burst must be at least 1: otherwise every request is refused")
        return self


class WebConfigFile(Section):
    """The whole file."""

    tls_server_config: TlsServer | None = None
    http_server_config: HttpServer = HttpServer()
    basic_auth_users: dict[str, HashText] = Field(default_factory=dict)
    rate_limit: RateLimit = RateLimit()
