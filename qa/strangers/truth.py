"""The recorder of a drawn program: what the program itself measures, as lines of JSON. It imports nothing of ours.

It is copied beside each program. Each process has a file of its own in the folder of the variable TRUTH, named by its
pid. Times are CLOCK_MONOTONIC, which all processes of the machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

_now = time.monotonic  # a program may replace the functions of the module
_files: dict[int, int] = {}  # by pid: a forked child opens its own
_opening = threading.Lock()  # of several threads, one opens it


def _started() -> float:
    """Return when the kernel started this process, which is before its interpreter runs."""
    with open("/proc/self/stat") as stat:  # noqa: PTH123 - without pathlib
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK") - (time.clock_gettime(time.CLOCK_BOOTTIME) - _now())


def _delayed() -> float:
    """Return the seconds for which this thread has been ready to run and had no CPU."""
    with contextlib.suppress(OSError):  # a program may hide /proc
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 100).split()[1]) / 1e9
        finally:
            os.close(file)
    return 0.0


def note(event: str, **facts: object) -> None:
    """Write an event of this thread."""
    at = _now()
    if os.getpid() not in _files:
        with _opening:
            _open(os.getpid())
    _write(_files[os.getpid()], {"t": at, "e": event, **facts})


def _open(pid: int) -> None:
    if pid not in _files:
        path = os.path.join(os.environ["TRUTH"], f"{pid}.jsonl")  # noqa: PTH118 - without pathlib
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _write(file, {"t": _now(), "e": "begin", "main": threading.main_thread().ident, "started": _started()})
        _files[pid] = file


def _write(file: int, event: dict[str, object]) -> None:
    os.write(file, json.dumps({"thread": threading.get_ident(), **event}).encode() + b"\n")


def step() -> None:
    """Record one training step, right after it."""
    note("step")


def passed() -> None:
    """Record a backward pass that a later step uses."""
    note("pass")


def ask(mode: str = "training", *, known: bool = True) -> None:
    """Record that the wait for a batch begins. `known` is false for a loader that nobody but the program can see."""
    note("ask", mode=mode, known=known, delayed=_delayed())


def got(mode: str = "training", samples: int | None = None) -> None:
    """Record that the batch has arrived, with its samples if the loader shows them."""
    note("got", mode=mode, samples=samples, delayed=_delayed())


def used(samples: int, tokens: int = 0) -> None:
    """Record the samples and tokens of a batch that a framework takes, before the step that uses it."""
    note("used", samples=samples, tokens=tokens)


def stop() -> None:
    """Record the end of a wait that brought no batch."""
    note("stop", delayed=_delayed())


def each(batches: Iterable[T], mode: str = "training", *, known: bool = True, sized: bool = True) -> Iterator[T]:
    """Iterate over the batches and record the wait for each. `sized` is false if the loader does not show the size."""
    ask(mode, known=known)
    try:
        iterator = iter(batches)
        while True:
            item = next(iterator)
            got(mode, len(item) if known and sized and isinstance(item, Sized) else None)
            yield item
            ask(mode, known=known)
    except StopIteration:
        stop()
    except GeneratorExit:
        raise
    except BaseException:
        stop()
        raise


@contextlib.contextmanager
def waited(mode: str = "training", *, known: bool = True) -> Iterator[None]:
    """Record the block as a wait."""
    ask(mode, known=known)
    try:
        yield
    finally:
        stop()


@contextlib.contextmanager
def within(phase: str, *, certain: bool = True) -> Iterator[None]:
    """Record the block as a phase. It is not `certain` if the documentation does not promise that it is detected."""
    note("enter", phase=phase, certain=certain)
    try:
        yield
    finally:
        note("leave")


def parameters(*allowed: int) -> None:
    """Record the number of elements of the parameters; several are allowed where the documentation leaves it open."""
    note("parameters", allowed=allowed)


def unknown(*names: str) -> None:
    """Record that a value of these names need not be reported: steps, batches, parameters, first: the phase until the
    first step; with threads, that several train, whose steps count like those of one, or more.
    """
    note("unknown", names=names)


def ticked(samples: int = 0, tokens: int = 0) -> None:
    """Record what the program passed to tick()."""
    note("ticked", samples=samples, tokens=tokens)


def watched() -> None:
    """Record that the program called watch()."""
    note("watched")


def end(*reasons: str) -> None:
    """Record how the process ends from here; several reasons where the documentation leaves it open."""
    note("end", reasons=reasons)
