"""Records of drawn things: a digest of all that is shown of each, a line for each name, a column for each seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

_DIGITS, _NOTHING = 4, "-"


@dataclass(frozen=True)
class Record:
    """`shown` yields what is shown of the thing with a seed: the name of a metric, field, rule or view, and a text."""

    name: str
    shown: Callable[[int], Iterable[tuple[str, str]]]
    seeds: int

    @property
    def file(self) -> Path:
        """The file of the record, which `make generate` writes."""
        return Path(__file__).with_name(f"{self.name}.text")

    def text(self) -> str:
        """Return the record of what is shown now."""
        columns = [_digests(self, seed) for seed in range(self.seeds)]
        names = sorted({name for column in columns for name in column})
        return "".join(f"{name}: {' '.join(each.get(name, _NOTHING) for each in columns)}\n" for name in names)

    def columns(self) -> dict[str, list[str]]:
        """Return the digests of the file by name."""
        lines = (line.rpartition(": ") for line in self.file.read_text(encoding="utf-8").splitlines())
        return {name: columns.split() for name, _, columns in lines}

    def others(self, seed: int) -> list[str]:
        """Return the names whose texts are others than recorded."""
        now, before = _digests(self, seed), {name: found[seed] for name, found in self.columns().items()}
        return sorted(n for n in {**now, **before} if now.get(n, _NOTHING) != before.get(n, _NOTHING))

    def check(self, seed: int) -> None:
        """Fail if anything is shown otherwise than recorded."""
        others = self.others(seed)
        assert not others, f"{others} are others than recorded: `make generate` records what is meant"


@cache
def _digests(record: Record, seed: int) -> Mapping[str, str]:
    found: dict[str, Any] = {}
    for name, text in record.shown(seed):
        found.setdefault(name, sha256()).update(f"{text}\n".encode())
    return {name: each.hexdigest()[:_DIGITS] for name, each in found.items()}
