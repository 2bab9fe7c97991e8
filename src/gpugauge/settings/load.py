"""The settings from file, environment and flags. A flag takes precedence over the environment, that over the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpugauge.settings.model import Settings
from gpugauge.settings.options import known_variables, unknown_variables, walk
from gpugauge.settings.yaml_model import YamlModel, nearest
from gpugauge.settings.yaml_text import Document

_FILE = YamlModel(Settings, "settings file")


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Return the settings. `flags` are values by key, `web.listen_address`. Raises ConfigError."""
    document = _FILE.read(file) if file else Document()
    for setting in walk():
        path, text = tuple(setting.key.split(".")), environ.get(setting.environment, "")
        if text:  # a variable that is set to nothing counts as not set, as in compose files and manifests
            document.put(path, text, setting.environment)
        if setting.key in flags:
            document.put(path, flags[setting.key], setting.flag)
    unknown = [(name, nearest(name, known_variables())) for name in unknown_variables(environ)]
    sentences = [f"{name}: unknown variable" + (f"; did you mean {near}?" if near else "") for name, near in unknown]
    settings = _FILE.validate(document, sentences)
    given = frozenset(_keys(document.tree))
    object.__setattr__(settings, "given", given)  # the class is frozen
    object.__setattr__(settings, "places", {key: document.place(tuple(key.split("."))) for key in given})
    return settings


def _keys(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name
