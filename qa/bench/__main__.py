"""Benches, one after the other: `python -m qa.bench [NAME …] [--write]`.

--write writes the result of each into qa/bench/results, and its figures into the documents. The fleet in it is a small
one, and needs Prometheus; docs/fleet.md has a fleet of 8,000 GPUs.
"""

import argparse
import shutil
import sys
import time

from qa.bench import (
    accuracy,
    attribution,
    cost,
    figures,
    fleet,
    gain,
    goals,
    growth,
    hook,
    parts,
    scrape,
    startup,
    tick,
    verdict,
    worker,
)
from qa.bench.report import reported, sentence

BENCHES = {
    bench.__name__.removeprefix("qa.bench."): bench
    for bench in (
        scrape,
        cost,
        startup,
        goals,
        parts,
        tick,
        worker,
        attribution,
        growth,
        accuracy,
        verdict,
        gain,
        hook,
        fleet,
    )
}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="benches to run; all if none is named")
parser.add_argument("--write", action="store_true", help="write qa/bench/results/NAME.json and the documents")
parser.add_argument("--json", action="store_true", help="print a line of JSON for each table")
options = parser.parse_args()
chosen = options.names or list(BENCHES)
if "fleet" in chosen and not shutil.which("prometheus"):
    if options.names or options.write:
        parser.error("the fleet needs Prometheus: install Debian's package `prometheus`")
    print("fleet: left out, because Debian's package `prometheus` is not installed", file=sys.stderr)
    chosen.remove("fleet")
sys.argv[1:] = ["--json"] if options.json else []  # for the benches, which parse their own flags
if not options.json:
    print(sentence() + "\n")
for name in chosen:
    began = time.monotonic()
    if not options.json:
        print(f"$ python -m qa.bench.{name}")
    reported.clear()
    BENCHES[name].main()
    if not options.json:
        print(flush=True)
    if options.write and reported:  # the tables of the verdict are written by `make generate`
        figures.keep(name, reported)
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
