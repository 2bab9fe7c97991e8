"""The settings from file, environment and flags. A flag takes precedence over the environment, that over the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.settings.nearest import nearest
from gpugauge.settings.options import walk
from gpugauge.settings.variables import OTHER_VARIABLES, unknown_variables
from gpugauge.settings.yaml_model import YamlModel
from gpugauge.settings.yaml_text import Document

_FILE = YamlModel(Settings, "settings file")


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Return the settings. `flags` are values by key, `web.listen_address`. Raises ConfigError."""
    document = _FILE.read(file) if file else Document()
    settings = list(walk())
    for setting in settings:
        text = environ.get(setting.environment, "")
        if text:  # a variable that is set to nothing counts as not set, as in compose files and manifests
            _put(document, setting.key, text, setting.environment)
        if setting.key in flags:
            _put(document, setting.key, flags[setting.key], setting.flag)
    known = {setting.environment for setting in settings} | OTHER_VARIABLES
    for name in unknown_variables(environ, known):
        near = nearest(name, known)
        raise ConfigError(f"{name}: unknown variable" + (f"; did you mean {near}?" if near else ""))
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
