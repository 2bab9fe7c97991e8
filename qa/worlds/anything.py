"""Values drawn by their types: each field of a typed value gets one, so that a field that is new is drawn, too."""

from __future__ import annotations

import random
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
# Shares, factors and seconds, also at the limits of usual conditions.
_NUMBERS = (0.0, 0.004, 0.005, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.5, 0.7, 1.0, 1.5, 20.0, 60.0, 400.0, 90_000.0)
_UNKNOWN = 0.25  # the share of the optional values that are None
Pools = Mapping[str, Sequence[Any]]
"""By the name of a field, or of `Class.field`, the values that are drawn; other fields are drawn by their types."""


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        return {each.name: hints[each.name] for each in fields(kind)}
    return {name: hints[name] for name in kind._fields}


class Drawer:
    """Draws values with one dice and one set of pools."""

    def __init__(self, dice: random.Random, pools: Pools) -> None:
        self.dice, self._pools = dice, pools

    def of(self, kind: type[_T], /, **given: Any) -> _T:
        """Return a value of a dataclass or named tuple; the fields that are given are not drawn."""
        named = (
            (name, f"{kind.__name__}.{name}", hint)
            for name, hint in _hints(cast("Any", kind)).items()
            if name not in given
        )
        return kind(**given, **{name: self._field(name, full, hint) for name, full, hint in named})

    def _field(self, name: str, full: str, hint: Any) -> Any:
        pool = self._pools.get(full, self._pools.get(name))
        return self.value(hint, name) if pool is None else self.dice.choice(pool)

    def value(self, hint: Any, name: str = "") -> Any:
        """Return a value of a type."""
        dice, origin, inner = self.dice, get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            some = [each for each in inner if each is not type(None)]
            return None if len(some) < len(inner) and dice.random() < _UNKNOWN else self.value(dice.choice(some), name)
        if origin is Literal:
            return dice.choice(inner)
        if origin is tuple and inner[-1:] == (...,):
            return tuple(self._several(inner[0], name))
        if origin is tuple:
            return tuple(self.value(each, name) for each in inner)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            keys = self._pools.get(f"{name} of", "ab")
            return {key: self.value(inner[1], name) for key in keys if dice.random() < 0.7}
        if isinstance(origin, type) and issubclass(origin, (Collection, Sequence)):
            found = self._several(inner[0], name)
            return frozenset(found) if issubclass(origin, frozenset) else tuple(found)
        return self._plain(hint, name)

    def _several(self, hint: Any, name: str) -> list[Any]:
        pool = self._pools.get(f"{name} of")
        if pool is not None:
            return [each for each in pool if self.dice.random() < 0.5]
        return [self.value(hint, name) for _ in range(self.dice.randint(0, 3))]

    def _plain(self, hint: Any, name: str) -> Any:
        dice = self.dice
        if hint is bool:
            return dice.random() < 0.5
        if hint is int:
            return dice.choice((0, 1, 2, 3, 17, 5_000, 3 << 30))
        if hint is float:
            return dice.choice(_NUMBERS)
        if hint is str:
            return dice.choice(("", name, f"{name} b"))
        if hint is Path:
            return Path("/x")
        return self.of(hint)
