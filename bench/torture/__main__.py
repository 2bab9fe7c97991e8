"""Torture the daemon: `python -m bench.torture [PART OF A NAME …] [--quick] [--jobs N] [--write]`.

Each fault has a daemon of its own, which is scraped all the time. --write puts the tables into docs/reliability.md, and
with names the rows of these faults in the place of the old ones.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench.torture import crowd, driver_faults, hostile_faults, machine_faults, worker_faults
from bench.torture.fault import Fault, Outcome, torture
from bench.torture.tables import crowd_tables, fault_table, put, put_rows

_SECONDS = 60.0  # of each crowd
# Seconds below which no scrape is slow: a busy machine lets a program wait for longer than five times a millisecond.
_FLOOR, _QUICK_FLOOR = 0.1, 1.0
_QUICK_JOBS = 8

FAULTS: tuple[Fault, ...] = (
    *driver_faults.FAULTS,
    *worker_faults.FAULTS,
    *machine_faults.FAULTS,
    *hostile_faults.FAULTS,
)


def main() -> int:
    """Return 1 when anything was not as promised."""
    parser = argparse.ArgumentParser(prog="python -m bench.torture", description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults with one of these in their name, and no crowds")
    parser.add_argument("--quick", action="store_true", help="a dozen faults at once, no crowds")
    parser.add_argument("--jobs", type=int, help="faults at once (1)")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/reliability.md; with names, their rows"
    )
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--quick runs so many at once that its figures are not for the document")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    began, load = time.monotonic(), os.getloadavg()[0]
    faults = [f for f in FAULTS if (f.quick or not options.quick) and _named(f, options.names)]
    floor = _QUICK_FLOOR if options.quick else _FLOOR
    jobs = options.jobs or (_QUICK_JOBS if options.quick else 1)
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(lambda fault: _run(fault, floor), faults))
    failed = [f"{outcome.fault.name}: {sentence}" for outcome in outcomes for sentence in outcome.failed]
    if options.write and options.names:
        put_rows(fault_table(outcomes, floor))
    if not options.quick and not options.names:
        slow, many = crowd.slow_connections(_SECONDS), crowd.many_scrapers(_SECONDS)
        failed += crowd.failures(slow, many)
        tables = crowd_tables(slow, many)
        for table in tables:
            print(table.plain())
        if options.write:
            took = f"The run took {(time.monotonic() - began) / 60:.0f} minutes, faults at once: {jobs}"
            put(fault_table(outcomes, floor), tables, f"{took}; the machine's load was {load:.1f} before it.")
    for sentence in failed:
        print(sentence, file=sys.stderr)
    return 1 if failed else 0


def _named(fault: Fault, names: list[str]) -> bool:
    return not names or any(name in fault.name for name in names)


def _run(fault: Fault, floor: float) -> Outcome:
    outcome = torture(fault, floor)
    if outcome.only_slow:  # what the daemon does comes again, and a pause of the machine does not
        outcome = torture(fault, floor)
    told, back = (f"{x:.1f}" if x is not None else "-" for x in (outcome.told, outcome.back))
    verdict = "FAILED" if outcome.failed else "ok"
    # In one piece: print() writes the end of a line apart, and other threads between.
    sys.stdout.write(
        f"{verdict:6} {fault.name:64} scrapes {outcome.scrapes:4} lost {outcome.lost} slow {outcome.slow} "
        f"wrong {outcome.wrong}  told {told} s, back {back} s, worst {outcome.worst_ms:.0f} ms\n"
    )
    sys.stdout.flush()
    return outcome


if __name__ == "__main__":
    sys.exit(main())
