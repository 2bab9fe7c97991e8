"""Drawn programs run again without what they wait for: is the measured gain within the bounds of the expected one?

`python -m qa.loaders.gains --programs 200 --seed 1001 --results FILE --first` takes 35 s a program, and 9 s one of
those that sleep in place of work: four run beside each other, the others alone. With `--first`, which needs root, other
programs can use the machine. Those that were disturbed are not counted; with the same FILE they run again, and the
others do not. Without a GPU there are gains for loaders, drawn as those of qa.loaders, and as root for a CPU quota.
The gain is the first one that the daemon publishes, after 15 to 20 s. Bounds are chosen with other seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from signal import SIGUSR1

from tests.e2e.programs import Daemon, daemon
from tests.e2e.test_planted import cgroup

from qa.bench.gpu.scrapes import parsed
from qa.loaders.draw import KINDS, Loader, draw
from qa.loaders.measure import DISTURBED
from qa.loaders.measure import Measured as Run
from qa.loaders.run import Reported, Samples, command, of_steps, read, write_files

QUOTA = "quota"
CAUSES = {QUOTA: "cpu_limited"}  # by kind; of others it is the loader
_EARLIEST = 14.0  # seconds of a program before which no gain is published
_NO_GAIN = 60.0  # … after which none is expected any more; under a quota the start alone takes 15
_AGAIN, _AGAIN_WARM = 14.0, 2.0  # seconds of the second run, and those of its begin
_APART = 7.0  # between the first programs that run beside each other
_TOGETHER = 8  # programs of each kind from which those that run beside each other are taken


@dataclass(frozen=True)
class Measured:
    """The published gain of a program as lower bound, value and upper bound, and the measured one. No gain: none is
    published; no truth: other programs took the CPUs.
    """

    seed: int
    kind: str
    workers: int
    beside: int  # programs at the same time
    gain: tuple[float, float, float] | None
    truth: float | None

    @property
    def within(self) -> bool:
        """Whether the truth is within the bounds."""
        return bool(self.gain and self.truth and self.gain[0] <= self.truth <= self.gain[2])

    @property
    def known(self) -> bool:
        """Whether there are both to compare."""
        return self.gain is not None and self.truth is not None

    @property
    def done(self) -> bool:
        """Whether another run would show nothing else."""
        return self.gain is None or self.truth is not None


class Page:
    """The daemon's page, read once a second for all: to parse it takes a CPU that the programs need."""

    def __init__(self, running: Daemon) -> None:
        self._daemon, self._lock, self._read = running, threading.Lock(), -1.0
        self._samples: Samples = {}

    def current(self) -> Samples:
        """Return the samples of the page, at most a second old."""
        with self._lock:
            if time.monotonic() > self._read + 1.0:
                self._samples, self._read = parsed(self._daemon.metrics()), time.monotonic()
            return self._samples


class Forks:
    """Programs that are forked from one that has imported torch, one after the other; each has a session of its own."""

    def __init__(self, running: Daemon, page: Page, folder: Path, later: float) -> None:
        self._later = later  # seconds until the first program: the start of one disturbs others
        self._page, self._pid, self._result = page, folder / "pid", folder / "steps.json"
        words, environment = command(running)
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, loader: Loader, cause: str | None = None, pids: Path | None = None) -> tuple[Run | None, Reported]:
        """Run a program in the cgroup of `pids`, until it has a gain without a cause; else for its seconds. Return what
        it measured, None if it made no step in its time.
        """
        time.sleep(self._later)
        self._later = 0.0
        self._result.unlink(missing_ok=True)
        files = {"cgroup": str(pids or ""), "pid": str(self._pid), "result": str(self._result)}
        assert self._server.stdin
        print(json.dumps({"loader": asdict(loader), **files}), file=self._server.stdin, flush=True)
        pid, reported = int(self._line()), Reported()
        end = time.monotonic() + _NO_GAIN
        if cause:
            time.sleep(_EARLIEST)
            while cause not in reported.gains and time.monotonic() < end:
                time.sleep(1.0)
                reported = read(self._page.current(), pid) or reported
            os.kill(pid, SIGUSR1)
        assert self._line() == "ended\n", loader
        steps = json.loads(self._result.read_text())["steps"]
        return of_steps(loader, steps) if len(steps) > 1 else None, reported

    def _line(self) -> str:
        assert self._server.stdout
        return self._server.stdout.readline()

    def close(self) -> None:
        """End the process that forks."""
        self._server.kill()
        self._server.wait()


def measure(loader: Loader, forks: Forks, beside: int) -> Measured:
    """Run a program, and again without what it waits for."""
    cause = CAUSES.get(loader.kind, "data_loading")
    again = replace(loader, item={}, collate={}, seconds=_AGAIN, warm=_AGAIN_WARM)
    share = random.Random(loader.seed).uniform(0.1, 0.4)
    with cgroup(share, str(loader.seed)) if loader.kind == QUOTA else nullcontext() as pids:
        before, reported = forks.run(replace(loader, seconds=2 * _NO_GAIN), cause, pids)
    after, _ = forks.run(again)
    truth = None
    # The gain is that of all of the time, and the delays under a quota are its own.
    if before and after and after.raw and (loader.kind == QUOTA or before.throughout <= DISTURBED):
        truth = round(before.step / after.alone, 4)
    return Measured(loader.seed, loader.kind, loader.workers, beside, reported.gains.get(cause), truth)


def drawn(kinds: Iterable[str], seeds: Iterable[int], folder: str) -> Iterator[Loader]:
    """Yield a program of each kind for each seed."""
    cpus = len(os.sched_getaffinity(0))
    for seed in seeds:
        for kind in kinds:
            d = random.Random(seed)
            if kind == QUOTA:
                yield Loader(seed, QUOTA, 0, d.uniform(0.01, 0.06), d.uniform(0.6, 1.0), 1)
            else:  # to start the workers is no part of a step: they start at once
                loader = replace(draw(seed * len(KINDS) + KINDS.index(kind), cpus, folder), method=None)
                yield replace(loader, busy=loader.busy / 4) if loader.sleeps else loader


def measured(loaders: Iterable[Loader], running: Daemon, folder: Path, beside: int) -> Iterator[Measured]:
    """Yield the results: programs that sleep run beside each other, and then the others of the same seeds alone."""
    idle: SimpleQueue[Forks] = SimpleQueue()
    every, page = [], Page(running)
    for number in range(beside):
        (folder / str(number)).mkdir()
        every.append(Forks(running, page, folder / str(number), number * _APART))
        idle.put(every[-1])

    def one(loader: Loader, at_once: int) -> Measured:
        forks = idle.get()
        try:
            return measure(loader, forks, at_once)
        finally:
            idle.put(forks)

    waiting, left = list(loaders), ThreadPoolExecutor(beside)
    try:
        while waiting:
            some, waiting = waiting[: _TOGETHER * len(KINDS)], waiting[_TOGETHER * len(KINDS) :]
            yield from left.map(lambda loader: one(loader, beside), [loader for loader in some if loader.sleeps])
            yield from (one(loader, 1) for loader in some if not loader.sleeps)
    finally:
        left.shutdown(cancel_futures=True)
        for forks in every:
            forks.close()


def take_precedence() -> None:
    """Run this process and its children before all others. A nice value counts within a session alone."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def line(one: Measured) -> str:
    """Return a result in one line."""
    bounds = "no gain" if one.gain is None else f"{one.gain[1]:.2f} ({one.gain[0]:.2f} to {one.gain[2]:.2f})"
    named = f"{one.seed:6} {one.kind:13} {one.workers}"
    truth = "disturbed" if one.truth is None else f"{one.truth:.2f}"
    return f"{named} expected {bounds:24} measured {truth:9} {'OUTSIDE' if one.known and not one.within else ''}"


def kept(file: Path | None) -> dict[tuple[str, int], Measured]:
    """Return the results in a file, the last one of each program."""
    found: dict[tuple[str, int], Measured] = {}
    for text in file.read_text().splitlines() if file and file.exists() else ():
        values: Mapping[str, object] = json.loads(text)
        one = Measured(**values)  # type: ignore[arg-type]  # as written below
        found[one.kind, one.seed] = one
    return found


def summary(results: Iterable[Measured], kinds: Iterable[str]) -> None:
    """Print the coverage and the widths of the bounds by kind."""
    every = list(results)
    for kind in (*kinds, "all"):
        of_kind = [one for one in every if kind in ("all", one.kind)]
        known = [one for one in of_kind if one.known]
        widths = [one.gain[2] / one.gain[0] for one in known if one.gain]
        share = f"{sum(one.within for one in known)} of {len(known)} within the bounds" if known else "no gain"
        width = f", median width a factor of {statistics.median(widths):.2f}" if widths else ""
        none, disturbed = (sum(test(one) for one in of_kind) for test in (_no_gain, _disturbed))
        print(f"{kind:13} {len(of_kind)} programs: {share}{width}; {none} without a gain, {disturbed} disturbed")


def _no_gain(one: Measured) -> bool:
    return one.gain is None


def _disturbed(one: Measured) -> bool:
    return not one.done


@contextmanager
def _served() -> Iterator[tuple[Daemon, Path]]:
    with tempfile.TemporaryDirectory(prefix="gains-") as name:
        folder = Path(name)
        write_files(folder / "files")
        with daemon(folder, "--driver.mode=off") as running:
            yield running, folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", action="store_true", help="before all other processes of the machine")
    parser.add_argument("--beside", type=int, default=4, help="programs that sleep, at the same time")
    parser.add_argument("--kinds", nargs="*", choices=(*KINDS, QUOTA), default=(*KINDS, QUOTA))
    parser.add_argument("--results", type=Path, help="JSON lines; what they have is not run again")
    options = parser.parse_args()
    kinds = list(dict.fromkeys(options.kinds))
    seeds = range(options.seed, options.seed - (-options.programs // len(kinds)))
    found = kept(options.results)
    if options.first:
        take_precedence()
    with _served() as (running, folder):
        loaders = list(drawn(kinds, seeds, str(folder / "files")))[: options.programs]
        wanted = {(loader.kind, loader.seed) for loader in loaders}
        left = [one for one in loaders if not (known := found.get((one.kind, one.seed))) or not known.done]
        for one in measured(left, running, folder, options.beside):
            found[one.kind, one.seed] = one
            print(line(one), flush=True)
            if options.results:
                with options.results.open("a") as file:
                    print(json.dumps(asdict(one)), file=file)
    summary([one for key, one in found.items() if key in wanted], kinds)


if __name__ == "__main__":
    main()
