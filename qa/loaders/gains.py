"""Drawn programs run again without what they wait for: is the measured gain within the bounds of the expected one?

`python -m qa.loaders.gains --programs 200 --seed 1`, on a quiet machine. Without a GPU there are gains for loaders,
which are drawn as those of qa.loaders, and for a CPU quota, which needs root. Programs that others disturbed are not
counted. With `--kinds sleeping`, several can run `--beside` each other.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e.programs import Daemon, daemon
from tests.e2e.test_planted import cgroup

from qa.loaders.draw import KINDS, Loader, draw
from qa.loaders.run import AGAIN, run, write_files

QUOTA = "quota"
_WHOLE_MINUTE = 48  # seconds after the first gain: the verdict is then of a minute without the start


@dataclass(frozen=True)
class Measured:
    """The published gain of a program with its bounds, and the measured one. No gain: none is published; no truth:
    other programs took the CPUs.
    """

    loader: Loader
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


def measure(loader: Loader, running: Daemon) -> Measured:
    """Run a program, and again without what it waits for."""
    again = replace(loader, item={}, collate={}, seconds=AGAIN)
    loader = replace(loader, seconds=2 * loader.seconds)
    if loader.kind == QUOTA:
        with cgroup(random.Random(loader.seed).uniform(0.1, 0.4), str(loader.seed)) as prefix:
            before, reported = run(loader, running, prefix or (), _WHOLE_MINUTE)
    else:
        before, reported = run(loader, running, settled=_WHOLE_MINUTE)
    after, _ = run(again, running)
    if loader.kind == QUOTA:  # the delays of the first run are its own
        gain, quiet, slow = reported.gains.get("cpu_limited"), after.raw, before.step
    else:
        gain, quiet, slow = reported.gains.get("data_loading"), before.raw and after.raw, before.alone
    return Measured(loader, gain, slow / after.alone if quiet else None)


def drawn(kinds: Iterable[str], seed: int, folder: str) -> Callable[[int], Loader]:
    """Return the program of a number."""
    chosen, cpus = list(kinds), len(os.sched_getaffinity(0))

    def of(number: int) -> Loader:
        kind, found = chosen[number % len(chosen)], seed + number
        if kind == QUOTA:
            d = random.Random(found)
            return Loader(found, QUOTA, 0, d.uniform(0.01, 0.06), d.uniform(0.6, 1.0), 1)
        return draw(found * len(KINDS) + KINDS.index(kind), cpus, folder)

    return of


def line(one: Measured) -> str:
    """Return a result in one line."""
    bounds = "no gain" if one.gain is None else f"{one.gain[1]:.2f} ({one.gain[0]:.2f} to {one.gain[2]:.2f})"
    named = f"{one.loader.seed:6} {one.loader.kind:13} {one.loader.workers}"
    measured = "disturbed" if one.truth is None else f"{one.truth:.2f}"
    return f"{named} expected {bounds:24} measured {measured:9} {'OUTSIDE' if one.known and not one.within else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beside", type=int, default=1, help="programs that run at the same time")
    parser.add_argument("--kinds", nargs="*", choices=(*KINDS, QUOTA), default=(*KINDS, QUOTA))
    options = parser.parse_args()
    results: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="gains-") as name, ThreadPoolExecutor(options.beside) as pool:
        folder = Path(name)
        write_files(folder / "files")
        of = drawn(options.kinds, options.seed, str(folder / "files"))
        with daemon(folder, "--driver.mode=off") as running:
            for one in pool.map(lambda number: measure(of(number), running), range(options.programs)):
                results.append(one)
                print(line(one), flush=True)
    for kind in dict.fromkeys((*options.kinds, "all")):
        of_kind = [one for one in results if kind in ("all", one.loader.kind)]
        known = [one for one in of_kind if one.known]
        widths = [one.gain[2] / one.gain[0] for one in known if one.gain]
        share = f"{sum(one.within for one in known)} of {len(known)} within the bounds" if known else "no gain"
        width = f", median width a factor of {statistics.median(widths):.2f}" if widths else ""
        print(f"{kind:13} {len(of_kind)} programs: {share}{width}")


if __name__ == "__main__":
    main()
