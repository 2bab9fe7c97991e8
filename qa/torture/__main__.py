"""Faults and crowds against the daemon: `python -m qa.torture [PART OF A NAME …] [--quick | --crowds | --together]
[--jobs N] [--write]`.

Each fault has a daemon of its own, which is scraped all the time. --together runs all attacks of users without rights
at once for a minute, --crowds that and the crowds. --write writes docs/proof/reliability.md; with names,
--crowds or --together, it replaces only the rows of these faults, or these tables.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from qa.bench import figures
from qa.bench.report import Report
from qa.torture import crowd, driver_faults, hostile_faults, machine_faults, node_faults, worker_faults
from qa.torture.fault import Fault, Outcome, torture
from qa.torture.tables import crowd_tables, fault_table, keep_rows, keep_table, together_table
from qa.torture.users import faults as users_faults
from qa.torture.users.together import together

_CROWD_SECONDS = 60.0  # for each crowd
_TOGETHER_SECONDS = 60.0
# Scrapes faster than this are never slow: a busy machine delays a program by more than five times a millisecond.
_SLOW_FLOOR_SECONDS, _QUICK_SLOW_FLOOR_SECONDS = 0.1, 1.0
_QUICK_JOBS = 8

_KINDS = {
    "the driver": driver_faults.FAULTS,
    "the worker": worker_faults.FAULTS,
    "the daemon and its machine": machine_faults.FAULTS,
    "the node": node_faults.FAULTS,
    "hostile clients": hostile_faults.FAULTS,
    "another user, under the unit's limits": users_faults.FAULTS,
}
FAULTS = tuple(replace(fault, kind=kind) for kind, faults in _KINDS.items() for fault in faults)


def main() -> int:
    """Return 1 if a fault or a crowd had another outcome than required, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m qa.torture", description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults with one of these in their name, and no crowds")
    parser.add_argument("--quick", action="store_true", help="a dozen faults at once, no crowds")
    parser.add_argument("--crowds", action="store_true", help="only the crowds, and all attacks of users at once")
    parser.add_argument("--together", action="store_true", help="only all attacks of users at once")
    parser.add_argument("--jobs", type=int, help="faults at once (1)")
    parser.add_argument(
        "--write", action="store_true", help="write docs/proof/reliability.md; with names, their rows only"
    )
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--write cannot be used with --quick: faults that run in parallel disturb each other's figures")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.together or options.crowds:
        tables, failed = _crowds() if options.crowds else _together()
        for table in reversed(tables) if options.write else ():
            keep_table(table)
        return _failed(failed)
    began = time.monotonic()
    faults = [f for f in FAULTS if (f.quick or not options.quick) and _named(f, options.names)]
    floor = _QUICK_SLOW_FLOOR_SECONDS if options.quick else _SLOW_FLOOR_SECONDS
    jobs = options.jobs or (_QUICK_JOBS if options.quick else 1)
    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(lambda fault: _run(fault, floor), faults))
    failed = [f"{outcome.fault.name}: {sentence}" for outcome in outcomes for sentence in outcome.failed]
    if options.write and options.names:
        keep_rows(fault_table(outcomes, floor))
    if not options.quick and not options.names:
        tables, sentences = _crowds()
        failed += sentences
        if options.write:
            facts = {"minutes": round((time.monotonic() - began) / 60), "faults at once": jobs}
            figures.keep("torture", [fault_table(outcomes, floor), *tables], facts)
    return _failed(failed)


def _crowds() -> tuple[list[Report], list[str]]:
    """Return the tables of the crowds and of all attacks at once, and a sentence for each failure."""
    slow, many = crowd.slow_connections(_CROWD_SECONDS), crowd.many_scrapers(_CROWD_SECONDS)
    tables = crowd_tables(slow, many)
    for table in tables:
        print(table.plain())
    first, failed = _together()
    return [*first, *tables], [*crowd.failures(slow, many), *failed]


def _together() -> tuple[list[Report], list[str]]:
    row, failed = together(_TOGETHER_SECONDS)
    table = together_table(row)
    print(table.plain())
    return [table], failed


def _failed(sentences: list[str]) -> int:
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return 1 if sentences else 0


def _named(fault: Fault, names: list[str]) -> bool:
    return not names or any(name in fault.name for name in names)


def _run(fault: Fault, floor: float) -> Outcome:
    outcome = torture(fault, floor)
    if outcome.only_slow:  # a second run repeats a fault of the daemon, but not a pause of the machine
        outcome = torture(fault, floor)
    reported, recovered = (f"{x:.1f}" if x is not None else "-" for x in (outcome.reported, outcome.recovered))
    verdict = "FAILED" if outcome.failed else "ok"
    # One write, because print() writes the end of the line separately and other threads write as well.
    sys.stdout.write(
        f"{verdict:6} {fault.name:64} scrapes {outcome.scrapes:4} lost {outcome.lost} slow {outcome.slow} "
        f"wrong {outcome.wrong}  reported {reported} s, recovered {recovered} s, worst {outcome.worst_ms:.0f} ms\n"
    )
    sys.stdout.flush()
    return outcome


if __name__ == "__main__":
    sys.exit(main())
