"""A month in minutes: jobs come and go on 8 GPUs, and the daemon's memory, descriptors and counters are watched.

`python -m bench.soak [--days N] [--write]`; --write puts the table into docs/reliability.md. The hooks' messages and
socket, the collectors, the verdict, the selection, the pages and the history are the daemon's own; the worker's answers
are made up, one a minute, the longest interval that can be set.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time

from bench.document import put
from bench.soak.daemon import LOOK_EVERY, Soak, soak
from bench.soak.load import MIG_DEVICE, STEP
from bench.soak.watch import LINGER

DAY = 24 * 3600 // STEP  # ticks
DAYS = 30
WARM = 0.2  # of the time; what grows later grows without end
BOUND = f"alive, or ended within {LINGER:.0f} s and two ticks"


def _daily(values: list[float]) -> float:
    """Return by how much the values of the looks rise in a day, a straight line drawn through them."""
    each = statistics.linear_regression(range(len(values)), values).slope if len(values) > 1 else 0.0
    return each * DAY / LOOK_EVERY


def table(made: Soak, seconds: float) -> str:
    """Return what was seen, in Markdown."""
    load, watch = made.load, made.watch
    warm = watch.looks[int(WARM * len(watch.looks)) :]
    blocks, resident = _daily([float(look.blocks) for look in warm]), _daily([look.resident for look in warm])
    devices = load.devices[:MIG_DEVICE]
    rows = {
        "simulated time": f"{made.ticks * STEP / 86400:g} days in {seconds:.0f} s, a tick a minute ({made.ticks:,})",
        "jobs": f"{load.began:,}, {load.reused:,} of them with a process id that another had before",
        "disturbances": f"{load.losses} GPUs lost and returned, {load.layouts} MIG layouts, {load.restarts} workers, "
        f"{load.xids.total()} Xid errors",
        "Python memory blocks": f"{warm[0].blocks:,} → {warm[-1].blocks:,}, {blocks:+.0f} a day after the warm-up",
        "resident memory": f"{warm[0].resident:.1f} → {warm[-1].resident:.1f} MB, {resident:+.3f} MB a day",
        "descriptors beside those of sessions": f"{warm[0].descriptors} → {warm[-1].descriptors}",
        "series, at most": f"{watch.most_series:,}",
        "processes shown, at most": f"{watch.most_processes}; {BOUND}: {watch.most_expected}",
        "busy seconds": f"{sum(c.busy for c in devices):,.0f} true, "
        f"{sum(watch.counted('busy', c.uuid) - c.busy for c in devices):+.1f} counted",
        "observed seconds": f"{sum(c.observed for c in devices):,.0f} true, "
        f"{sum(watch.counted('observed', c.uuid) - c.observed for c in devices):+.1f} counted",
        "trainings ended": f"{load.ended.total():,}, each with its reason",
        "not as it should be": ", ".join(f"{n} {what}" for what, n in watch.wrong.items()) or "nothing",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {told} |" for what, told in rows.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=DAYS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each Xid is one
    began = time.monotonic()
    made = soak(round(options.days * DAY))
    text = table(made, time.monotonic() - began)
    print(text)
    for what, example in made.watch.examples.items():
        print(f"{what}: {example}")
    if options.write:
        put("soak", f"`python -m bench.soak` on {time.strftime('%Y-%m-%d')}.\n\n{text}")
    if made.watch.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
