"""Flags and variables with plainly valid values, without click, YAML and pydantic; else `settings.load`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from gpugauge.settings.kinds import ListenAddress, Section, parse_listen_address, split_list
from gpugauge.settings.model import Settings
from gpugauge.settings.options import Setting, unknown_variables, walk

# The file, and click's request for completions.
_NOT_PLAIN = ("GPUGAUGE_CONFIG_FILE", "_GPUGAUGE_COMPLETE")
# How values of a type are plainly written, and read.
_PLAIN: dict[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true|false", "true".__eq__),
    int: ("0|[1-9][0-9]{0,14}", int),
    float: (r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,8})?", float),
    str: (".+", str),
    Path: (".+", Path),
    ListenAddress: (".+", parse_listen_address),
}
_NEVER = "(?!)"
_CHECKS: dict[str, Callable[[Any, Any], object]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "min_length": lambda value, least: len(value) >= least,
    "pattern": lambda value, pattern: re.search(pattern, value),
}


class _NotPlainError(Exception):
    """A value is wrong, or only the full reading knows."""


def plain_settings(arguments: Iterable[str], environ: Mapping[str, str]) -> Settings | None:
    """Return the settings of flags and environment variables, or None if `settings.load` must read them."""
    if any(map(environ.get, _NOT_PLAIN)) or any(unknown_variables(environ)):
        return None
    settings = list(walk())
    try:
        given = {s.key: _value(s, text) for s in settings if (text := environ.get(s.environment))}
        given |= _flags(iter(arguments), settings)
        made: Settings = _section(Settings, "", given)
    except (_NotPlainError, ValueError):
        return None
    object.__setattr__(made, "given", frozenset(given))  # the class is frozen
    return made


def _flags(arguments: Iterator[str], settings: Iterable[Setting]) -> dict[str, Any]:
    spelled = {setting.flag: (setting, True) for setting in settings}
    spelled |= {setting.negative_flag: (setting, False) for setting in settings if setting.negative_flag}
    found: dict[str, Any] = {}
    for argument in arguments:
        flag, equals, text = argument.partition("=")
        setting, switch = spelled.get(flag, (None, False))
        if setting is None or setting.key in found:
            raise _NotPlainError
        if setting.negative_flag is None:
            # The flag of a list is one of its parts, and is not split at commas.
            found[setting.key] = _value(setting, text if equals else next(arguments, ""), split=lambda value: (value,))
        elif equals:
            raise _NotPlainError
        else:
            found[setting.key] = switch
    return found


def _value(setting: Setting, text: str, split: Callable[[str], Any] = split_list) -> Any:
    """Return the value that a text has as this setting. Raises _NotPlainError or ValueError."""
    # A flag in the place of a value, and text that pydantic and its regular expressions may see in another way.
    if text.startswith("-") or not (text.isascii() and text.isprintable()):
        raise _NotPlainError
    if setting.repeatable:
        value: Any = tuple(_one(get_args(setting.annotation)[:1], part) for part in split(text))
    else:
        value = _one(setting.options, text)
    if not all(_CHECKS[limit](value, bound) for limit, bound in setting.limits.items()):
        raise _NotPlainError
    return value


def _one(options: tuple[Any, ...], text: str) -> Any:
    """Return the value of a text: one of the options, which are values, or a type and perhaps that of None."""
    if text in options:
        return text
    pattern, read = _PLAIN.get(options[0], (_NEVER, str))
    if not re.fullmatch(pattern, text):
        raise _NotPlainError
    return read(text)


def _section(section: type[Any], prefix: str, given: Mapping[str, Any]) -> Any:
    """Return the section of which the keys begin with `prefix`. Raises ValueError."""
    values = {}
    for name, annotation in get_type_hints(section).items():
        key = prefix + name
        is_section = isinstance(annotation, type) and issubclass(annotation, Section)
        if key in given:
            values[name] = given[key]
        elif is_section and any(other.startswith(f"{key}.") for other in given):
            values[name] = _section(annotation, f"{key}.", given)
    return section(**values)
