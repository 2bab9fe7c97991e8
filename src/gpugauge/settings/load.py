"""The settings from file, environment and flags. A flag takes precedence over the environment, that over the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.settings.nearest import nearest
from gpugauge.settings.options import walk
from gpugauge.settings.yaml_model import YamlModel
from gpugauge.settings.yaml_text import Document

# Kubernetes sets GPUGAUGE_SERVICE_HOST, GPUGAUGE_PORT_10478_TCP_ADDR and others in every pod beside a service that is
# called gpugauge; https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)")
# Variables that other parts read and that may be set for a whole machine: the hook in a training process, the command
# line before the settings are read, the build of the package, and the scripts for Slurm.
_OTHER_VARIABLES = frozenset(
    {
        *("GPUGAUGE_HOOK", "GPUGAUGE_HOOK_SOCKET", "GPUGAUGE_HOOK_RECAP", "GPUGAUGE_RUN_ID", "GPUGAUGE_JOB"),
        *("GPUGAUGE_CONFIG_FILE", "GPUGAUGE_REVISION", "GPUGAUGE_JOBS"),
    }
)
_FILE = YamlModel(Settings, "settings file")


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Return the settings. `flags` are values by key, `web.listen_address`. Raises ConfigError."""
    document = _FILE.read(file) if file else Document()
    for setting in walk():
        text = environ.get(setting.environment, "")
        if text:  # a variable that is set to nothing counts as not set, as in compose files and manifests
            _put(document, setting.key, text, setting.environment)
        if setting.key in flags:
            _put(document, setting.key, flags[setting.key], setting.flag)
    _refuse_unknown_variables(environ)
    return validate(document)


def validate(document: Document) -> Settings:
    """Return the settings of which a document gives some. Raises ConfigError."""
    settings = _FILE.validate(document)
    object.__setattr__(settings, "given", frozenset(_keys(document.tree)))  # the class is frozen
    return settings


def _keys(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _put(document: Document, key: str, value: object, place: str) -> None:
    """Set a value in a document. A section that is none in the file is left for the validation to refuse."""
    path = tuple(key.split("."))
    tree = document.tree
    for section in path[:-1]:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            return
    tree[path[-1]] = value
    document.places[path] = place


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a variable with our prefix that nothing reads: it would have no effect."""
    known = {setting.environment for setting in walk()} | _OTHER_VARIABLES
    for name in environ:
        if not name.startswith("GPUGAUGE_") or name in known or _SERVICE_LINK.fullmatch(name):
            continue
        near = nearest(name, known)
        raise ConfigError(f"{name}: unknown variable" + (f"; did you mean {near}?" if near else ""))
