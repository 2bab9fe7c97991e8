"""Runs drawn loaders, and again as the daemon recommends: python -m qa.loaders --loaders 10 --seed 1.

A result is that of the clock where the run had 5 seconds in which other programs hardly took the CPUs, and otherwise
computed from durations without the time for which a thread waited for a CPU: `computed` stands beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.e2e.programs import daemon

from qa.loaders.draw import draw
from qa.loaders.run import Result, judge, write_files

ENOUGH = 0.9  # share of the loaders that must be right


def line(result: Result) -> str:
    """Return a result in one line."""
    loader, before, after, reported = result.loader, result.before, result.after, result.reported
    text = f"{loader.seed:5} {loader.kind:13} {loader.workers}"
    text += f" -> {'-' if result.tried is None else result.tried:<2} {reported.reason or '-':16}"
    text += f" step {1e3 * before.step:4.0f} ms, wait {1e3 * before.wait:4.0f} ms"
    if after is not None:
        gain = before.alone / after.alone
        text += f" -> step {1e3 * after.step:4.0f} ms, wait {1e3 * after.wait:4.0f} ms, gain {gain:.2f}"
    if reported.speedup is not None:
        text += f" (expected {reported.lower:.2f} to {reported.speedup:.2f})"
    text += f"  {result.verdict}"
    if result.raw:
        return text
    return f"{text}, computed: disturbed for {max(before.disturbed, after.disturbed if after else 0.0):.0%} of the time"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.loaders", description=__doc__)
    parser.add_argument("--loaders", type=int, default=10, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="that of the first loader")
    parser.add_argument("--only", type=int, nargs="*", help="run the loaders of these seeds alone")
    options = parser.parse_args()
    seeds = options.only or range(options.seed, options.seed + options.loaders)
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    by_clock = 0
    with tempfile.TemporaryDirectory(prefix="loaders-") as name:
        folder = Path(name)
        write_files(folder / "files")
        with daemon(folder, "--driver.mode=off") as running:
            for seed in seeds:
                loader = draw(seed, len(os.sched_getaffinity(0)), str(folder / "files"))
                result = judge(loader, running)
                verdicts[loader.kind][result.verdict] += 1
                by_clock += result.verdict == "right" and result.raw
                print(line(result), flush=True)
    total = sum(verdicts.values(), Counter())
    for kind, counts in sorted(verdicts.items()):
        print(f"{kind:13} {counts['right']} right, {counts['absent']} absent, {counts['wrong']} wrong")
    print(f"{total['right']} of {total.total()} right, {by_clock} of them by the clock alone")
    return 0 if total["right"] >= ENOUGH * total.total() else 1


if __name__ == "__main__":
    sys.exit(main())
