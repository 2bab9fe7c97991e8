"""From file, environment and flags to `Settings`: what is closer to the user wins, and errors name the place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.model import Settings
from gpugauge.settings.options import walk
from gpugauge.settings.yaml_model import PlainLoader

# Kubernetes puts GPUGAUGE_SERVICE_HOST, GPUGAUGE_PORT_10478_TCP_ADDR and their like into every pod beside a service
# called gpugauge; https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)")
# Read by the hook inside a training process, and perhaps set for a whole machine.
_HOOK_VARIABLES = re.compile(r"GPUGAUGE_HOOK(_.+)?")
_NOT_BELOW = "this is a section, its keys stand below it"
_MAX_FILE_BYTES = 1 << 20

Tree = dict[str, Any]
Places = dict[str, str]


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Return the settings: flag over environment over file over default. `flags` by key, `web.listen_address`.

    Raises ConfigError. Reads nothing but `file`, so a reload is the same call again.
    """
    tree, places = read_file(file) if file else ({}, {})
    for setting in walk():
        text = environ.get(setting.environment, "")
        if text:  # set to nothing means not set, as compose files and manifests write it
            _put(tree, places, setting.key, text, setting.environment)
        if setting.key in flags:
            _put(tree, places, setting.key, flags[setting.key], setting.flag)
    _refuse_unknown_variables(environ)
    return validate(tree, places)


def validate(tree: Tree, places: Mapping[str, str]) -> Settings:
    """Return the settings of which `tree` gives some; raises ConfigError, with what `places` tells of the key."""
    try:
        settings = TypeAdapter(Settings).validate_python(tree)
    except ValidationError as error:
        raise ConfigError(_sentence(error, places)) from None
    object.__setattr__(settings, "given", frozenset(_keys(tree)))  # frozen from here on
    return settings


def _keys(tree: Tree, prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def read_file(file: Path) -> tuple[Tree, Places]:
    """Return a settings file as nested dictionaries, and `file:line` for each key in it; raises ConfigError."""
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{file}: larger than {_MAX_FILE_BYTES} bytes, this is no settings file")
    try:
        return _parse(content, file)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = " ".join(str(error.problem or error.context).split())
        raise ConfigError(f"{file}{line}: {problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or date of impossible digits
        raise ConfigError(f"{file}: not readable as YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None


# --- YAML with line numbers ---


class _Loader(PlainLoader):
    """Plain YAML: only true and false are booleans (`off` is a driver mode), no dates, no aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML
            raise yaml.MarkedYAMLError(problem="aliases are not used in settings", problem_mark=mark)
        return super().compose_node(parent, index)


_MAPPING = "tag:yaml.org,2002:map"
_PLAIN = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?i:true|false)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))


def _parse(content: bytes, file: Path) -> tuple[Tree, Places]:
    loader = _Loader(content)
    try:
        root = loader.get_single_node()
        if root is None:
            return {}, {}
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{file}:{root.start_mark.line + 1}: expected `section:` and its keys below it")
        places: Places = {}
        return _mapping(loader, root, "", file, places), places
    finally:
        loader.dispose()


def _mapping(loader: _Loader, node: yaml.MappingNode, prefix: str, file: Path, places: Places) -> Tree:
    tree: Tree = {}
    for key_node, value_node in node.value:
        place = f"{file}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or not key_node.value.isprintable():
            raise ConfigError(f"{place}: a key must be plain text")
        key = prefix + key_node.value
        if key in places:
            raise ConfigError(f"{place}: {key} is set twice, first in {places[key]}")
        places[key] = place
        if isinstance(value_node, yaml.MappingNode) and value_node.tag == _MAPPING:
            tree[key_node.value] = _mapping(loader, value_node, key + ".", file, places)
        else:
            value = loader.construct_object(value_node, deep=True)
            if value is not None:  # `web:` with nothing below it sets nothing
                tree[key_node.value] = value
    return tree


# --- merging ---


def _put(tree: Tree, places: Places, key: str, value: object, place: str) -> None:
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):  # the file has `web: 5`
            raise ConfigError(f"{places[section]}: {section}: {_NOT_BELOW}")
    tree[name] = value
    places[key] = place


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a variable that looks like one of ours but is none: it would be silently without effect."""
    known = {setting.environment for setting in walk()}
    sections = tuple({f"GPUGAUGE_{setting.key.split('.')[0].upper()}_" for setting in walk() if "." in setting.key})
    for name in environ:
        if name in known or not name.startswith(sections):
            continue
        if not _SERVICE_LINK.fullmatch(name) and not _HOOK_VARIABLES.fullmatch(name):
            raise ConfigError(f"{name}: unknown variable{_suggestion(name, known)}")


# --- errors ---


def _sentence(error: ValidationError, places: Mapping[str, str]) -> str:
    """Describe the first error by place, key and reason."""
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"] if not isinstance(part, int)]
    key = ".".join(names)
    # A key inside a foreign structure has no place of its own: the nearest one around it has.
    place = next((places[k] for k in (".".join(names[:n]) for n in range(len(names), 0, -1)) if k in places), "")
    where = f"{place}: {key}" if place else key
    if first["type"] == "unexpected_keyword_argument":
        keys = [setting.key for setting in walk()]
        return f"{where}: unknown setting{_suggestion(key, [*keys, *(k.rpartition('.')[0] for k in keys)])}"
    if first["type"] == "dataclass_type":
        return f"{where}: {_NOT_BELOW}"
    reason = first["msg"].removeprefix("Value error, ")
    given = repr(first["input"])
    return f"{where}: {reason[:1].lower()}{reason[1:]}, not {given if len(given) <= 80 else given[:80] + '…'}"


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest known name, comparing the whole name, then its last part."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if not close:
        by_last_part = {candidate.rpartition(".")[2]: candidate for candidate in known}
        close = [by_last_part[last] for last in difflib.get_close_matches(name.rpartition(".")[2], by_last_part, n=1)]
    return f"; did you mean {close[0]}?" if close else ""
