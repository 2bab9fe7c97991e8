"""The web configuration file: TLS, client certificates, users (docs/security.md)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.yaml_model import YamlModel
from gpugauge.settings.yaml_text import Document
from gpugauge.web.config.model import RateLimit, TlsServer, WebConfigFile
from gpugauge.web.config.tls import TlsConfigError, files, tls_context

_USERS = "basic_auth_users"
_TLS = "tls_server_config"
_FILE = YamlModel(
    WebConfigFile, "web configuration file", secrets=((_USERS,), (_TLS, "cert"), (_TLS, "key"), (_TLS, "client_ca"))
)


@dataclass(frozen=True)
class WebConfig:
    """The content of a web configuration file that can be used."""

    tls: ssl.SSLContext | None
    client_names: frozenset[str] | None
    """Names of which a client's certificate must have one; None if every verified certificate is accepted."""
    headers: tuple[tuple[str, str], ...]
    users: Mapping[bytes, bytes] = field(repr=False)
    """bcrypt hash by user name."""
    rate_limit: RateLimit
    files: tuple[Path, ...]
    """The file and all files that it names."""


def load_web_config(path: Path) -> WebConfig:
    """Return what the file and the files that it names configure. Raises ConfigError."""
    document = _FILE.read(path)
    _refuse_users_without_hash(document)
    file = _FILE.validate(document)
    server = file.tls_server_config
    if server is not None and server == TlsServer():
        server = None  # configuration management writes `tls_server_config: {}`, or empty values, for "no TLS"
    try:
        tls = tls_context(server, path.parent) if server else None
    except TlsConfigError as error:
        raise ConfigError(f"{document.place((_TLS, error.key))}: {_TLS}.{error.key}: {error}") from None
    return WebConfig(
        tls,
        None if server is None or server.client_allowed_sans is None else frozenset(server.client_allowed_sans),
        tuple(
            (name, value) for name, value in file.http_server_config.headers.model_dump(by_alias=True).items() if value
        ),
        {name.encode(errors="replace"): text.encode() for name, text in file.basic_auth_users.items()},
        file.rate_limit,
        (path, *(files(server, path.parent) if server else ())),
    )


def _refuse_users_without_hash(document: Document) -> None:
    """Raise ConfigError for a user without a value, who would otherwise count as absent."""
    users = document.tree.get(_USERS)
    for path, place in document.places.items():
        if len(path) == 2 and path[0] == _USERS and isinstance(users, dict) and path[1] not in users:
            raise ConfigError(f"{place}: {_USERS}.{path[1]}: a bcrypt hash is missing here")
