"""All benches, one after the other: `python -m bench [NAME …] [--write]`.

--write writes the figures into bench/results and docs/performance.md, and needs a run without names. The fleet in it is
a small one, and needs Prometheus; docs/fleet.md has a fleet of 8,000 GPUs.
"""

import argparse
import io
import shutil
import sys
import time
from contextlib import redirect_stdout

from bench import accuracy, attribution, cost, fleet, growth, hook, scrape, startup, tick, verdict, worker
from bench.report import sentence, write

BENCHES = {
    bench.__name__.removeprefix("bench."): bench
    for bench in (scrape, cost, startup, tick, worker, attribution, growth, accuracy, verdict, hook, fleet)
}


class Tee(io.StringIO):
    """A buffer that also prints."""

    def write(self, text: str) -> int:
        if sys.__stdout__:
            sys.__stdout__.write(text)
            sys.__stdout__.flush()
        return super().write(text)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("names", nargs="*", choices=[[], *BENCHES], help="benches to run; all if none is named")
parser.add_argument("--write", action="store_true", help="write bench/results/DATE.{txt,json} and docs/performance.md")
parser.add_argument("--json", action="store_true", help="print a line of JSON for each table")
options = parser.parse_args()
if options.write and options.names:
    parser.error("--write needs the figures of one run of all benches: leave out the names")
chosen = options.names or list(BENCHES)
if "fleet" in chosen and not shutil.which("prometheus"):
    if options.names or options.write:
        parser.error("the fleet needs Prometheus: install Debian's package `prometheus`")
    print("fleet: left out, because Debian's package `prometheus` is not installed", file=sys.stderr)
    chosen.remove("fleet")
sys.argv[1:] = ["--json"] if options.json else []  # for the benches, which parse their own flags
with redirect_stdout(Tee()) as printed:
    if not options.json:
        print(sentence() + "\n")
    for name in chosen:
        began = time.monotonic()
        if not options.json:
            print(f"$ python -m bench.{name}")
        BENCHES[name].main()
        if not options.json:
            print()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
if options.write:
    write(printed.getvalue())
