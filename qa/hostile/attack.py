"""What an attack is: acts of one kind of client, drawn from a seed, with a text form from which it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

# The acts of a kind of client by name. Each is a method without parameters: it draws them from `self.draw`.
Acts: TypeAlias = Mapping[str, Callable[[Any], None]]


@dataclass(frozen=True)
class Act:
    """One act; its parameters are drawn from the seed."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name}:{self.seed}"


@dataclass(frozen=True)
class Attack:
    """The acts of one client, one after the other. One that `holds` keeps what it has opened until it is killed."""

    kind: str
    acts: tuple[Act, ...]
    holds: bool = False

    def __str__(self) -> str:
        return " ".join([self.kind + "+" * self.holds, *map(str, self.acts)])


Round: TypeAlias = tuple[Attack, ...]
"""Attacks at the same time, each by another user."""


def text(attacks: Round) -> str:
    """Return the text form: `KIND[+] ACT:SEED …`, several attacks separated by a comma."""
    return ", ".join(map(str, attacks))


def parse(form: str, kinds: Mapping[str, Acts]) -> Round:
    """Return the round of a text form. Raises ValueError with what was expected."""
    return tuple(_attack(part.split(), kinds) for part in form.split(","))


def _attack(words: list[str], kinds: Mapping[str, Acts]) -> Attack:
    kind, *acts = words or [""]
    if kind.rstrip("+") not in kinds:
        raise ValueError(f"{kind!r} is no kind of attack: expected one of {', '.join(kinds)}")
    known = kinds[kind.rstrip("+")]
    made = []
    for word in acts:
        name, _, seed = word.partition(":")
        if name not in known or not seed.isdecimal():
            raise ValueError(f"{word!r} is no act of {kind}: expected ACT:SEED with one of {', '.join(known)}")
        made.append(Act(name, int(seed)))
    return Attack(kind.rstrip("+"), tuple(made), kind.endswith("+"))


def draw(chance: Random, kind: str, acts: Acts) -> Attack:
    """Draw an attack. The weights of its acts are drawn as well, so that some attacks do one thing only."""
    weights = [chance.random() ** 2 for _ in acts]
    count = chance.choice((3, 20, 100))
    chosen = chance.choices(list(acts), weights, k=count)
    return Attack(kind, tuple(Act(name, chance.randrange(1 << 20)) for name in chosen), chance.random() < 0.7)


def smaller(attacks: Round, fails: Callable[[Round], bool | None]) -> Round:
    """Return a part of the round that still fails, found by leaving out halves, then quarters, and so on.

    `fails` returns None when no more may be tried.
    """
    acts = [(place, act) for place, attack in enumerate(attacks) for act in attack.acts]
    size = len(acts)
    while size > 1:
        size = (size + 1) // 2
        begin = 0
        while begin < len(acts) and len(acts) > 1:
            fewer = acts[:begin] + acts[begin + size :]
            failed = fails(_round(attacks, fewer)) if fewer else False
            if failed is None:
                return _round(attacks, acts)
            if failed:
                acts = fewer
            else:
                begin += size
    return _round(attacks, acts)


def _round(attacks: Round, acts: list[tuple[int, Act]]) -> Round:
    def parts() -> Iterator[Attack]:
        for place, attack in enumerate(attacks):
            own = tuple(act for of, act in acts if of == place)
            if own:
                yield Attack(attack.kind, own, attack.holds)

    return tuple(parts())
