"""Every setting by key, with its environment variable and its flag, derived from the model."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from gpugauge.settings.kinds import Section
from gpugauge.settings.model import Settings

# Kubernetes sets GPUGAUGE_SERVICE_HOST, GPUGAUGE_PORT_10478_TCP_ADDR and others in every pod beside a service that is
# called gpugauge; https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)")
# Variables that other parts read and that may be set for a whole machine: the hook in a training process, the command
# line before the settings are read, the build of the package, and the scripts for Slurm.
_OTHER_VARIABLES = frozenset(
    {
        *("GPUGAUGE_HOOK", "GPUGAUGE_HOOK_SOCKET", "GPUGAUGE_HOOK_RECAP", "GPUGAUGE_HOOK_COUNT_FLOPS"),
        *("GPUGAUGE_HOOK_ANSWERS", "GPUGAUGE_HOOK_RUN"),
        *("GPUGAUGE_RUN_ID", "GPUGAUGE_JOB"),
        *("GPUGAUGE_CONFIG_FILE", "GPUGAUGE_REVISION", "GPUGAUGE_JOBS", "GPUGAUGE_PROC", "GPUGAUGE_SYS"),
        *("GPUGAUGE_EPILOG_DELAY", "GPUGAUGE_SLURM_ENV"),
    }
)


class Setting(NamedTuple):
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
        unpacked = get_origin(self.annotation) in {Literal, types.UnionType}
        return get_args(self.annotation) if unpacked else (self.annotation,)

    @property
    def kind(self) -> str:
        """The type in words, for the reference."""
        if self.key.endswith("_seconds"):
            return "duration"
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


def known_variables() -> frozenset[str]:
    """Return the environment variables that a part of gpugauge reads."""
    return _OTHER_VARIABLES.union(setting.environment for setting in walk())


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables with our prefix that nothing reads, so that they have no effect."""
    known = known_variables()
    for name in environ:
        if name.startswith("GPUGAUGE_") and name not in known and not _SERVICE_LINK.fullmatch(name):
            yield name
