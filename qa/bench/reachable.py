"""The nearest figures to the goals of qa.bench.goals, by what qa.bench.parts and qa.bench.cost measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOTE = (
    "The last column takes off all of the worker's own time or memory, too: less is not possible with a worker in a "
    "compiled language."
)
_WORKER = "worker, without the simulated library"
_SERVER = "streams of our own in place of tornado's, OpenSSL only with TLS"
_DEMAND = "nearer only by reading all of them for each scrape that comes unexpectedly, which costs time of the driver"


@dataclass(frozen=True)
class Saved:
    """What the parts that could be saved take."""

    first_scan: float  # seconds of the start
    scans: float  # CPU seconds a minute of all scans of /proc, six a minute
    server: float  # MB


def rows(goals: Mapping[str, Any], cost: Mapping[str, Any], saved: Saved) -> list[dict[str, Any]]:
    """Return a row for each goal. `goals` and `cost` are the results of these benches."""
    worker = next(row for row in cost["tables"][0]["rows"] if row["part"] == _WORKER)
    # In the order of the goals: what could be saved, how, and what the worker takes itself.
    changes: list[tuple[float, str, float | None]] = [
        (saved.scans * 2 / 3, "scans of /proc every 30 s in place of 10", worker["idle"]),
        (saved.scans / 3, "scans of /proc only with the scrapes", worker["scraped each 15 s"]),
        (0.0, "nothing was found", worker["scraped each 1 s"]),
        (0.0, _DEMAND, None),
        (0.0, "", None),
        (saved.server, _SERVER, worker["PSS MB"]),
        (saved.server, _SERVER, worker["PSS MB"]),
        (saved.first_scan, "the scan of /proc while the driver is opened", None),
    ]
    return [
        {
            "goal": row["what"],
            "at most": float(row["target"].rpartition(" ")[2]),
            "measured": row["gpugauge"],
            "nearest": row["gpugauge"] - less,
            "by": how,
            "without the worker": "" if of_worker is None else row["gpugauge"] - less - of_worker,
        }
        for row, (less, how, of_worker) in zip(goals["tables"][0]["rows"], changes, strict=True)
    ]
