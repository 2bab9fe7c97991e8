"""Every setting by key, with its environment variable and its flag, derived from the model."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpugauge.settings.kinds import Section
from gpugauge.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the model. Its `key`, `web.listen_address`, determines the other spellings."""

    key: str
    annotation: Any
    default: Any
    description: str
    limits: Mapping[str, Any]

    @property
    def environment(self) -> str:
        """The environment variable: `GPUGAUGE_WEB_LISTEN_ADDRESS`."""
        return "GPUGAUGE_" + self.key.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The flag on the command line: `--web.listen-address`."""
        return "--" + self.key.replace("_", "-")

    @property
    def negative_flag(self) -> str | None:
        """The flag that disables a boolean: `--no-collector.device`."""
        return "--no-" + self.key.replace("_", "-") if self.annotation is bool else None

    @property
    def repeatable(self) -> bool:
        """Whether the setting is a list: its flag may be repeated, and text is split at commas."""
        return get_origin(self.annotation) is tuple

    @property
    def options(self) -> tuple[Any, ...]:
        """The values of a Literal, the types of a union, or the type."""
        unpacked = get_origin(self.annotation) in {Literal, Union, types.UnionType}
        return get_args(self.annotation) if unpacked else (self.annotation,)

    @property
    def kind(self) -> str:
        """The type in words, for the reference."""
        options = [option for option in self.options if option is not type(None)]
        return "one of " + ", ".join(map(str, options)) if len(options) > 1 else _KINDS.get(options[0], "list")

    @property
    def default_text(self) -> str:
        """The default as it is written in a file."""
        if self.default is None or self.default == ():
            return "not set"
        if self.repeatable:
            return ", ".join(map(str, self.default))
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}


def walk(section: type[Section] = Settings, prefix: str = "") -> Iterator[Setting]:
    """Yield every setting in the order of the model."""
    hints = get_type_hints(section)
    for row in fields(section):
        if isinstance(hints[row.name], type) and issubclass(hints[row.name], Section):
            yield from walk(hints[row.name], f"{prefix}{row.name}.")
        elif "description" in row.metadata:
            limits = {name: limit for name, limit in row.metadata.items() if name != "description"}
            yield Setting(prefix + row.name, hints[row.name], row.default, row.metadata["description"], limits)
