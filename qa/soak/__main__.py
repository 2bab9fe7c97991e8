"""A simulated month of jobs on 8 GPUs, with checks of the daemon's memory, descriptors and counters.

`python -m qa.soak [--days N] [--write]`; --write writes the table into docs/proof/reliability.md. The messages and the
socket of the hook, the collectors, the verdict, the selection, the page and the history are the daemon's own. The
worker's answers are generated, one a minute, which is the longest interval that can be set.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time

from qa.bench import figures
from qa.bench.report import report, reported
from qa.soak.daemon import MEMORY_TICKS, Soak, soak
from qa.soak.load import MIG_DEVICE, STEP
from qa.soak.watch import LINGER

DAY = 24 * 3600 // STEP  # ticks
DAYS = 30
WARM_UP_SHARE = 0.2  # of the time; memory that grows later is a leak
BOUND = f"alive, or ended within {LINGER:.0f} s and two ticks"


def _daily(values: list[float]) -> float:
    """Return the slope of the measurements for a day, by linear regression."""
    each = statistics.linear_regression(range(len(values)), values).slope if len(values) > 1 else 0.0
    return each * DAY / MEMORY_TICKS


def rows(made: Soak, seconds: float) -> list[dict[str, str]]:
    """Return the results, a row for each."""
    load, watch = made.load, made.watch
    warm = watch.memory[int(WARM_UP_SHARE * len(watch.memory)) :]
    blocks, resident = _daily([float(m.blocks) for m in warm]), _daily([m.resident for m in warm])
    devices = load.devices[:MIG_DEVICE]
    found = {
        "simulated time": f"{made.ticks * STEP / 86400:g} days in {seconds:.0f} s, a tick a minute ({made.ticks:,})",
        "jobs": f"{load.began:,}, {load.reused:,} of them with a process id that another had before",
        "disturbances": f"{load.losses} GPUs lost and returned, {load.layouts} MIG layouts, {load.restarts} workers, "
        f"{load.xids.total()} Xid errors",
        "Python memory blocks": f"{warm[0].blocks:,} → {warm[-1].blocks:,}, {blocks:+.0f} a day after the warm-up",
        "resident memory": f"{warm[0].resident:.1f} → {warm[-1].resident:.1f} MB, {resident:+.3f} MB a day",
        "descriptors beside those of sessions": f"{warm[0].descriptors} → {warm[-1].descriptors}",
        "series, at most": f"{watch.max_series:,}",
        "processes shown, at most": f"{watch.max_processes}; {BOUND}: {watch.max_expected}",
        "busy seconds": f"{sum(c.busy for c in devices):,.0f} true, "
        f"{sum(watch.counted('busy', c.uuid) - c.busy for c in devices):+.1f} counted",
        "observed seconds": f"{sum(c.observed for c in devices):,.0f} true, "
        f"{sum(watch.counted('observed', c.uuid) - c.observed for c in devices):+.1f} counted",
        "trainings ended": f"{load.ended.total():,}, each with its reason",
        "not as it should be": ", ".join(f"{n} {error}" for error, n in watch.wrong.items()) or "nothing",
    }
    return [{"what": name, "result": text} for name, text in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=DAYS)
    parser.add_argument("--write", action="store_true", help="write the table into docs/proof/reliability.md")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each Xid logs one
    began = time.monotonic()
    made = soak(round(options.days * DAY))
    command = "python -m qa.soak" + (f" --days {options.days:g}" if options.days != DAYS else "")
    report("A simulated month", rows(made, time.monotonic() - began), command)
    for error, example in made.watch.examples.items():
        print(f"{error}: {example}")
    if options.write:
        figures.keep("soak", reported)
    if made.watch.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
