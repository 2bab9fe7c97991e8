"""The web configuration file of Prometheus' programs: TLS, client certificates, users (docs/security.md)."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.load import read_file
from gpugauge.web.config.model import RateLimit, TlsServer, WebConfigFile
from gpugauge.web.config.tls import TlsConfigError, files, tls_context

# Nothing of what stands below them is ever shown in a message.
_SECRET = ("basic_auth_users", "tls_server_config.cert", "tls_server_config.key", "tls_server_config.client_ca")


@dataclass(frozen=True)
class WebConfig:
    """A web configuration file that was read and can be used."""

    tls: ssl.SSLContext | None
    client_names: frozenset[str] | None
    """Names of which a client's certificate must carry one; None when any verified certificate will do."""
    headers: tuple[tuple[str, str], ...]
    users: Mapping[bytes, bytes] = field(repr=False)
    """bcrypt hash by user name."""
    rate_limit: RateLimit
    files: tuple[Path, ...]
    """All the files that this was made from."""


def load_web_config(path: Path) -> WebConfig:
    """Read the file and all that it names. Raises ConfigError: file, line, key, what was expected."""
    tree, places = read_file(path)
    users = tree.get("basic_auth_users")
    for key, place in places.items():
        section, _, user = key.partition(".")
        if section == "basic_auth_users" and user and isinstance(users, dict) and user not in users:
            raise ConfigError(f"{place}: {key}: a bcrypt hash is missing here")
    if users is None:
        tree.pop("basic_auth_users", None)
    try:
        file = WebConfigFile.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_sentence(error, path, places)) from None
    server = file.tls_server_config
    if server is not None and not server.model_fields_set:
        server = None  # `tls_server_config: {}` is how configuration management writes "no TLS"
    try:
        tls = tls_context(server, path.parent) if server else None
    except TlsConfigError as error:
        raise ConfigError(f"{_place(error.key, path, places)}: {error.key}: {error}") from None
    return WebConfig(
        tls,
        _names(server),
        tuple(
            (name, value) for name, value in file.http_server_config.headers.model_dump(by_alias=True).items() if value
        ),
        {name.encode(errors="replace"): text.encode() for name, text in file.basic_auth_users.items()},
        file.rate_limit,
        (path, *(files(server, path.parent) if server else ())),
    )


def _names(server: TlsServer | None) -> frozenset[str] | None:
    names = server.client_allowed_sans if server else None
    return None if names is None else frozenset(names)


def _place(key: str, path: Path, places: Mapping[str, str]) -> str:
    """Return `file:line` of the key, or of the nearest one around it."""
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, str(path))


def _sentence(error: ValidationError, path: Path, places: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    where = f"{_place(key, path, places)}: {key}"
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, list(_keys(WebConfigFile)), n=1, cutoff=0.7)
        return f"{where}: unknown key{f'; did you mean {close[0]}?' if close else ''}"
    if first["type"] in ("model_type", "dict_type"):
        return f"{where}: this is a section, its keys stand below it"
    reason = first["msg"].removeprefix("Value error, ")
    secret = key.startswith(_SECRET[0]) or key in _SECRET
    given = "" if secret or first["type"] == "value_error" else f", not {str(first['input'])[:80]!r}"
    return f"{where}: {reason[:1].lower()}{reason[1:]}{given}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, row in model.model_fields.items():
        key = prefix + (row.alias or name)
        yield key
        for inner in (row.annotation, *getattr(row.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _keys(inner, key + ".")
