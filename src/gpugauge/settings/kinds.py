"""The parts of the settings model. Standard library only, since the daemon loads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from gpugauge.base.duration import seconds

DEFAULT_PORT = 10478
URL_PATTERN = r"^(https?://[^\s{}\"`]+)?$"
PATH_PATTERN = r"^/[A-Za-z0-9._~/-]*[A-Za-z0-9_~]$"
PATTERNS = {
    URL_PATTERN: "an address that begins with http:// or https://",
    PATH_PATTERN: "a path such as /metrics, of letters, digits and . _ ~ / -",
}
"""Patterns in words, for errors."""
RUNBOOK_URL = "https://github.com/gpugauge/gpugauge/blob/main/docs/runbook.md"

_T = TypeVar("_T")


class ConfigError(Exception):
    """A setting cannot be used. The message is one sentence with place, key and what was expected."""


class ReaderEnded(ConfigError):  # noqa: N818  (often no error: --help ends it, too)
    """The process that reads the settings ended without them. Its `status` is minus a signal that ended it."""

    def __init__(self, status: int) -> None:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        super().__init__(f"the process that reads the settings ended {how}")
        self.status, self.explained = status, status >= 0


class ListenAddress(NamedTuple):
    """An address to listen on. An empty host means all interfaces, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(value: object) -> object:
    """Return the ListenAddress of `host:port`, `:port`, `[::1]:port` or `host`. Raises ValueError."""
    if isinstance(value, ListenAddress):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"an address is written host:port, not {value!r}")
    host, colon, port = value.strip().rpartition(":")
    if not colon or value.strip().endswith("]"):
        host, port = value.strip(), str(DEFAULT_PORT)
        if host.isdigit():
            raise ValueError(f"a port alone is written :{host}, not {value!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ValueError(f"an IPv6 address with a port is written [address]:port, not {value!r}")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is not a port between 0 and 65535")
    return ListenAddress(host[1:-1] if bracketed else host, int(port))


def split_list(value: object) -> object:
    """Return the parts of `a,b`: a list may be one line of text, or a number. Others are returned as they are."""
    if _is_integer(value):
        return (value,)
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def names(value: object) -> object:
    """Return the parts of `a,b`, or of a list. In YAML a name such as the index of a GPU is a number."""
    if isinstance(value, (list, tuple)):
        return tuple(str(part) if _is_integer(part) else part for part in value)
    return (str(value),) if _is_integer(value) else split_list(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Read:
    """An annotation: pydantic passes a value through `read` before it checks the type."""

    def __init__(self, read: Callable[[object], object]) -> None:
        self._read = read

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> object:
        from pydantic_core.core_schema import no_info_before_validator_function  # noqa: PLC0415  (only where settings are read)

        return no_info_before_validator_function(self._read, handler(source))


Seconds: TypeAlias = Annotated[float, Read(seconds)]
Names: TypeAlias = Annotated[tuple[str, ...], Read(names)]
Address: TypeAlias = Annotated[ListenAddress, Read(parse_listen_address)]
Addresses: TypeAlias = Annotated[tuple[Address, ...], Read(split_list)]


def setting(*, default: _T, description: str, within: tuple[float, float] | tuple[()] = (), **limits: object) -> _T:
    """Return the dataclass field of a setting; `limits` are arguments of pydantic's Field, `within` the bounds."""
    limits |= zip(("ge", "le"), within, strict=False)
    return field(default=default, metadata={"description": description, **limits})


def with_switches(descriptions: Mapping[str, str]) -> Callable[[type[_T]], type[_T]]:
    """Return a class decorator that adds a boolean setting, true by default, for each name in `descriptions`."""

    def decorate(section: type[_T]) -> type[_T]:
        switches = [(name, bool, setting(default=True, description=text)) for name, text in descriptions.items()]
        namespace = {"__doc__": section.__doc__}
        made = make_dataclass(section.__name__, switches, bases=(section,), namespace=namespace, frozen=True)
        # As written, so that instances can be pickled. Python 3.12 and newer ignore it in the namespace.
        made.__module__ = section.__module__
        return made

    return decorate


@dataclass(frozen=True)
class Section:
    """A group of settings. It is frozen and has no other keys."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}
