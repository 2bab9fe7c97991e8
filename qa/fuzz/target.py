"""The fuzzing target: how its inputs are made and tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeAlias

from qa.fuzz.mutate import Tree, dumped, edited, grafted

Attempt: TypeAlias = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A reader of foreign input. It may raise `refuses`, and no other exception."""

    name: str
    prepare: Callable[[Path, ExitStack], Attempt]
    """Returns the function that tries one input; the folder is its own."""
    refuses: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...]
    trees: tuple[Tree, ...] = ()
    """Seeds as JSON's types. Edits of these stay well-formed, and reach the code behind the parser."""
    dump: Callable[[Tree], bytes] = field(default=dumped)
    max_cpu_seconds: float = 1.0
    """Limit of the CPU time of an input."""

    def generate(self, random: Random) -> bytes:
        """Return a nearly valid input."""
        if self.trees and random.random() < 0.6:
            made = self.dump(grafted(random.choice(self.trees), random))
            return made if random.random() < 0.8 else edited(made, self.tokens, random)
        return edited(random.choice(self.seeds), self.tokens, random)

    def accepts(self, attempt: Attempt, data: bytes) -> bool:
        """Try an input, and return whether it was accepted. Raises exceptions that are not in `refuses`."""
        try:
            attempt(data)
        except self.refuses:
            return False
        return True


def plain(attempt: Attempt) -> Callable[[Path, ExitStack], Attempt]:
    """Return the preparation of a reader that needs none."""
    return lambda _folder, _stack: attempt


def written(name: str, attempt: Callable[[Path], object]) -> Callable[[Path, ExitStack], Attempt]:
    """Return the preparation of a reader of a file of this name."""

    def prepare(folder: Path, _: ExitStack) -> Attempt:
        path = folder / name

        def write_and_try(data: bytes) -> object:
            path.write_bytes(data)
            return attempt(path)

        return write_and_try

    return prepare


def lines(tree: Tree) -> bytes:
    """Return a list as lines of JSON."""
    return b"\n".join(dumped(line) for line in (tree if isinstance(tree, list) else [tree]))


def as_yaml(trees: Sequence[Tree]) -> tuple[bytes, ...]:
    """Return trees as seeds with one key on a line, as people write them."""
    return tuple(json.dumps(tree, indent=1).encode() for tree in trees)
