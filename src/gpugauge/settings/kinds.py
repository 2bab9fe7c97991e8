"""What the settings are made of: sections, fields with their limits, and the kinds that need reading. Standard library
only, as `config` is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

DEFAULT_PORT = 10478

_T = TypeVar("_T")


class ConfigError(Exception):
    """A setting cannot be used; the message is one sentence with place, key and, for unknown keys, the nearest one."""


class ReaderEnded(ConfigError):  # noqa: N818  (what happened; most often somebody asked for --help)
    """The process that reads the settings ended without any; `explained` when it has said why itself, and `status` is
    its exit status then.
    """

    def __init__(self, status: int) -> None:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        super().__init__(f"the process that reads the settings ended {how}")
        self.status, self.explained = status, status >= 0


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


class Read:
    """In an annotation: what pydantic has `read` make of a value before it checks the type."""

    def __init__(self, read: Callable[[object], object]) -> None:
        self._read = read

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> object:
        from pydantic_core.core_schema import no_info_before_validator_function  # noqa: PLC0415  (only where it is used)

        return no_info_before_validator_function(self._read, handler(source))


Names: TypeAlias = Annotated[tuple[str, ...], Read(split_list)]
Address: TypeAlias = Annotated[ListenAddress, Read(parse_listen_address)]
Addresses: TypeAlias = Annotated[tuple[Address, ...], Read(split_list)]


def setting(*, default: _T, description: str, **limits: object) -> _T:
    """Return the field of a setting; `limits` are those of pydantic's Field, which takes a field's metadata as its own
    arguments.
    """
    return field(default=default, metadata={"description": description, **limits})


@dataclass(frozen=True)
class Section:
    """A group of settings: frozen, nothing unknown is taken."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}
