"""CPU time spent inside the simulated library, recorded in a file that a bench reads while the program runs.

The simulated library is Python in place of a C library, so its time belongs to neither exporter. With BENCH_LEDGER in
the environment, `qa.bench.peer` and `qa.bench.ours` wrap it in a Ledger.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "BENCH_LEDGER"  # the environment variable with the folder
_FILE_BYTES = 16  # nanoseconds and calls
_LOOPS, _REPEATS = 20_000, 7


class Ledger:
    """A wrapper of a library that adds up the thread time of its calls and their number, in a file of this process."""

    def __init__(self, library: Any, folder: Path) -> None:
        self._library = library
        path = folder / str(os.getpid())
        path.write_bytes(bytes(_FILE_BYTES))
        with path.open("r+b") as file:
            self._kept = memoryview(mmap.mmap(file.fileno(), _FILE_BYTES)).cast("Q")

    def __getattr__(self, function: str) -> Callable[..., int]:
        inner, kept, now = getattr(self._library, function), self._kept, time.thread_time_ns

        def call(*arguments: Any) -> int:
            began = now()
            code: int = inner(*arguments)
            kept[0] += now() - began
            kept[1] += 1
            return code

        return call


def kept(library: Any) -> Any:
    """Return the library, wrapped in a Ledger if the environment names a folder."""
    folder = os.environ.get(VARIABLE)
    return Ledger(library, Path(folder)) if folder else library


class Sum(NamedTuple):
    """Seconds inside the library, and calls of it."""

    seconds: float
    calls: int

    def since(self, before: Sum) -> Sum:
        return Sum(self.seconds - before.seconds, self.calls - before.calls)


def read(folder: Path) -> dict[int, Sum]:
    """Return the sums by pid."""
    found = {}
    for path in folder.iterdir():
        nanoseconds, calls = memoryview(path.read_bytes()).cast("Q")
        found[int(path.name)] = Sum(nanoseconds / 1e9, calls)
    return found


class Price(NamedTuple):
    """Seconds that the ledger itself adds to a call: inside its sum, and beside it."""

    inside: float
    beside: float


class _Nothing:
    def nothing(self) -> int:
        return 0


def price(folder: Path) -> Price:
    """Return the price, measured on a function that does nothing: medians of loops with and without a ledger."""
    ledger = Ledger(_Nothing(), folder)
    bare, kept = _Nothing().nothing, ledger.nothing
    inside, beside = [], []
    for _ in range(_REPEATS):
        without, before = _loop(bare), ledger._kept[0]
        whole, within = _loop(kept), (ledger._kept[0] - before) / 1e9
        inside.append((within - without) / _LOOPS)
        beside.append((whole - within) / _LOOPS)
    (folder / str(os.getpid())).unlink()
    return Price(sorted(inside)[_REPEATS // 2], sorted(beside)[_REPEATS // 2])


def _loop(function: Callable[[], int]) -> float:
    began = time.thread_time()
    for _ in range(_LOOPS):
        function()
    return time.thread_time() - began
