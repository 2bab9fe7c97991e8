"""Draws loaders: what a batch costs where, how many workers load it, and what the training itself needs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

KINDS = ("sleeping", "cpu", "cold_files", "slow_collate", "one_core")
FILES, FILE_BYTES = 6000, 16_384
_LITTLE = 0.25  # share of a step without its loader in which a CPU is used
_COLD_SECONDS = 0.00012  # a file, on the slow side


@dataclass(frozen=True)
class Loader:
    """One drawn loader. The seconds of an item are those of one of `batch` items; `own` are those of a step without its
    loader, and the share `busy` of them uses a CPU.
    """

    seed: int
    kind: str
    workers: int
    own: float
    busy: float
    batch: int
    item: dict[str, Any] = field(default_factory=dict)
    collate: dict[str, Any] = field(default_factory=dict)
    cpus: int | None = None  # to which the program is bound
    items: int = 1_000_000
    iterable: bool = False
    generator: bool = False  # no DataLoader. Of one that waits, the number is not known: it may have workers of its own
    method: str | None = None
    seconds: float = 60.0
    warm: float = 4.0  # seconds of these that are not measured

    @property
    def sleeps(self) -> bool:
        """Whether it hardly uses a CPU, so that several of them disturb each other little."""
        works = self.item.get("cpu") or self.collate.get("cpu") or self.item.get("files")
        return not works and self.busy <= _LITTLE


def draw(seed: int, cpus: int, folder: str) -> Loader:
    """Return the loader of a seed for a machine with so many CPUs; `folder` has the files of cold loaders."""
    d = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    return {
        "sleeping": _sleeping,
        "cpu": _cpu,
        "cold_files": _cold,
        "slow_collate": _collate,
        "one_core": _one_core,
    }[kind](seed, d, cpus, folder)


def _common(d: random.Random, workers: int) -> dict[str, Any]:
    iterable = d.random() < 0.25
    return {
        "workers": workers,
        "batch": d.choice([1, 2, 4, 8]),
        "iterable": iterable,
        "method": d.choice([None, None, None, "forkserver"]) if workers else None,
    }


def _sleeping(seed: int, d: random.Random, _: int, __: str) -> Loader:
    own = d.uniform(0.03, 0.08)
    common = _common(d, d.choice([0, 1, 2, 3]))
    # The workers cannot keep up: a batch takes longer than all of them together are given.
    seconds = own * max(1, common["workers"]) * d.uniform(1.5, 4.0)
    return Loader(
        seed,
        "sleeping",
        own=own,
        busy=d.uniform(0.0, 0.2),
        item={"sleep": seconds / common["batch"]},
        **common,
    )


def _cpu(seed: int, d: random.Random, cpus: int, _: str) -> Loader:
    workers = d.choice([0, 1])
    common = _common(d, workers)
    own, busy = d.uniform(0.08, 0.16), d.uniform(0.0, 0.1)
    # The CPUs are enough for the whole wait: the loader takes at most 0.75 of what the training leaves.
    most = 0.75 * (cpus - busy) * own
    seconds = d.uniform(0.5 * most if workers == 0 else max(1.2 * own, 0.7 * most), most)
    return Loader(
        seed,
        "cpu",
        own=own,
        busy=busy,
        item={"cpu": seconds / common["batch"]},
        generator=workers == 0 and d.random() < 0.3,
        **common,
    )


def _cold(seed: int, d: random.Random, _: int, folder: str) -> Loader:
    common = _common(d, d.choice([0, 1]))
    own = d.uniform(0.02, 0.05)
    files = int(own * d.uniform(1.3, 2.0) / _COLD_SECONDS / common["batch"]) + 1
    item = {"files": files, "folder": folder, "of": FILES}
    return Loader(seed, "cold_files", own=own, busy=0.0, item=item, **common)


def _collate(seed: int, d: random.Random, cpus: int, _: str) -> Loader:
    common = _common(d, d.choice([0, 0, 1, 2]))
    own = d.uniform(0.05, 0.1)
    cpu = common["workers"] < 2 and d.random() < 0.4
    most = 0.75 * cpus * own if cpu else 4.0 * own * max(1, common["workers"])
    seconds = d.uniform(0.75 * most if common["workers"] else 0.4 * most, most)
    return Loader(seed, "slow_collate", own=own, busy=0.0, collate={"cpu" if cpu else "sleep": seconds}, **common)


def _one_core(seed: int, d: random.Random, _: int, __: str) -> Loader:
    common = _common(d, d.choice([0, 1, 2]))
    own, busy = d.uniform(0.05, 0.1), d.choice([0.0, 0.2, 0.5])
    seconds = own * d.uniform(1.2, 2.5)
    return Loader(seed, "one_core", own=own, busy=busy, item={"cpu": seconds / common["batch"]}, cpus=1, **common)
