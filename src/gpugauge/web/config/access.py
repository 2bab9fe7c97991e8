"""The server's access control by the web configuration file: TLS, client certificates, users (docs/security.md). A file
that changes is read again without a restart.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from ssl import CERT_REQUIRED, SSLContext
from typing import Any

from gpugauge.base.guard import Background, Loop
from gpugauge.base.logline import Condition, fields
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.yaml_model import YamlModel
from gpugauge.settings.yaml_text import Document
from gpugauge.snapshot import LastReload
from gpugauge.web.config.model import RateLimit, TlsServer, WebConfigFile
from gpugauge.web.config.tls import TlsConfigError, files, tls_context
from gpugauge.web.config.users import Busy, Login, Logins, parse_login
from gpugauge.web.server import Reply, Request, sentence

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


log = logging.getLogger("gpugauge.web")

# A change is used once the next check finds no other one: a certificate and its key are seldom replaced at the same
# moment, and an editor may write a file in parts.
_CHECK_INTERVAL_SECONDS = 1.0

# A read that takes longer is a failure: the files may be on a file system that does not respond.
_START_SECONDS, _RELOAD_SECONDS = 30.0, 10.0

_LOGIN_NEEDED = sentence(401, "a user name and a password are needed here")._replace(
    headers=(("WWW-Authenticate", 'Basic realm="gpugauge", charset="UTF-8"'),)
)
_BUSY = sentence(429, "too many logins are being checked, try again")._replace(headers=(("Retry-After", "1"),))
_OVER_RATE = sentence(429, "more requests than rate_limit allows")._replace(headers=(("Retry-After", "1"),))
_OTHER_NAME = sentence(403, "the client's certificate has none of the names in client_allowed_sans")

_Signature = tuple[tuple[int, int, int] | None, ...]


class WebAccess:
    """The server's `Access` by a web configuration file. A change applies to new connections shortly afterwards."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises ConfigError."""
        self._path = path
        self._logins = Logins()
        self._reading: Background[tuple[WebConfig, _Signature] | None] = Background("read-files")
        found = self._timed(_START_SECONDS, lambda: _load(path, (path,)))
        assert found
        self._config, self._read = found
        self._seen = self._read
        self._bucket = _Bucket(self._config.rate_limit)
        self._problem = Condition(log)
        self._thread = Loop("web-config", self._watch)
        self.last_reload = LastReload(True, time.time())

    def start(self) -> None:
        """Start to check the files, in a separate thread: a file system that hangs delays no scrape."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to check the files. Does not wait for the thread."""
        self._thread.stopping.set()

    @property
    def tls(self) -> SSLContext | None:
        """The context for new connections."""
        return self._config.tls

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that the file sets."""
        return self._config.headers

    @property
    def identifies(self) -> bool:
        """Whether every client needs a login or a certificate."""
        tls = self._config.tls
        return bool(self._config.users) or (tls is not None and tls.verify_mode is CERT_REQUIRED)

    def refusal(self, request: Request) -> Reply | Awaitable[Reply | None] | None:
        """Return None if the request is allowed, or the reply that refuses it. An unknown login must be awaited."""
        config = self._config
        if config.client_names is not None and not config.client_names & _names(request.certificate):
            return _OTHER_NAME
        if config.users:
            login = parse_login(request.headers.get("authorization"))
            if login is None:
                return _LOGIN_NEEDED
            if not self._logins.is_remembered(config.users, login):
                return self._login_refusal(login, config, request.remote)
        return self._over_rate()

    async def _login_refusal(self, login: Login, config: WebConfig, remote: str) -> Reply | None:
        try:
            right = await self._logins.verify(config.users, login, remote)
        except Busy:
            return _BUSY
        return self._over_rate() if right else _LOGIN_NEEDED

    def _over_rate(self) -> Reply | None:
        """Return a refusal above the rate. Only requests after a login count: guessed passwords do not use it up."""
        return None if self._bucket.take(time.monotonic()) else _OVER_RATE

    def _watch(self) -> None:
        if not self._thread.stopping.wait(_CHECK_INTERVAL_SECONDS):
            self.check()

    def check(self) -> None:
        """Read the files again if they have changed and are settled, or could not be used before."""
        try:
            found = self._timed(_RELOAD_SECONDS, self._changed)
            if found is None:
                return
            config, read = found
            _refuse_less(self._config, config)
        except ConfigError as error:
            self._problem.failing(f"web configuration refused, the previous one stays: {error}", file=str(self._path))
            self.last_reload = self.last_reload._replace(successful=False)
            return
        self._problem.recovered("web configuration usable again")
        if config.rate_limit != self._config.rate_limit:
            self._bucket = _Bucket(config.rate_limit)
        self._config, self._read = config, read
        self._seen = read
        self.last_reload = LastReload(True, time.time())
        log.info("web configuration read again", extra=fields(file=str(self._path)))

    def _changed(self) -> tuple[WebConfig, _Signature] | None:
        """Return the content of files that changed and are settled, or were unusable. Raises ConfigError."""
        now = _signature(self._config.files)
        settled, self._seen = now == self._seen, now
        if not settled or (now == self._read and self.last_reload.successful):
            return None
        return _load(self._path, self._config.files)

    def _timed(
        self, seconds: float, read: Callable[[], tuple[WebConfig, _Signature] | None]
    ) -> tuple[WebConfig, _Signature] | None:
        try:
            return self._reading.call(seconds, read)
        except TimeoutError:
            raise ConfigError(
                f"{self._path}: this file, or one that it names, cannot be read: no answer after {seconds:g} s; is it "
                "on a file system that does not respond?"
            ) from None


class _Bucket:
    """A token bucket: one token per interval, at most `burst` of them. Without an interval it is never empty."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._tokens, self._at = float(limit.burst), time.monotonic()

    def take(self, now: float) -> bool:
        if not self._limit.interval:
            return True
        self._tokens = min(self._limit.burst, self._tokens + (now - self._at) / self._limit.interval)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _load(path: Path, files: tuple[Path, ...]) -> tuple[WebConfig, _Signature]:
    """Return the configuration and the signature of its files, which is taken first: a change meanwhile shows."""
    while True:
        signature = _signature(files)
        config = load_web_config(path)
        if config.files == files:
            return config, signature
        files = config.files


def _refuse_less(old: WebConfig, new: WebConfig) -> None:
    """Raise ConfigError for a change that, made by mistake, would admit everybody."""
    if (old.tls is None) != (new.tls is None):
        raise ConfigError("TLS can only be enabled or disabled by a restart")
    if old.users and not new.users:
        raise ConfigError("the last user can only be removed by a restart")


def _signature(files: tuple[Path, ...]) -> _Signature:
    """Return a value that changes if a file, or the target of a link, is replaced or written."""
    return tuple(map(_signature_of, files))


def _signature_of(file: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)  # noqa: PTH116  follows links: Kubernetes mounts secrets as links
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the alternative names of a certificate's subject, addresses in their usual form."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(_address(name) if kind == "IP Address" else name for kind, name in names)


def _address(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name
