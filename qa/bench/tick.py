"""CPU time of the daemon per second by part, idle and scraped every second: `python -m qa.bench.tick`.

8 H100 with 24 processes at the reading intervals of the daemon, in virtual time and one thread. Wake-ups of threads and
messages between processes are not included; `qa.bench.cost` measures the whole daemon.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.virtual import VirtualDaemon

from gpugauge.daemon.app import GC_THRESHOLDS
from gpugauge.simulator.scenario.load import load_scenario
from qa.bench import figures
from qa.bench.report import report

SECONDS, WARM_UP = 300, 60
T = TypeVar("T")


class Stopwatch:
    """CPU seconds by part, of this thread only: collectors can leave work to other threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def __call__(self, part: str, work: Callable[[], T], /) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            self.seconds[part] += time.thread_time() - began


def run(scenario: str, *, scraped: bool) -> dict[str, float]:
    """Return milliseconds per second by part."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        daemon = VirtualDaemon(load_scenario(scenario), Path(folder), watch)
        for second in range(WARM_UP + SECONDS):
            if second == WARM_UP:
                watch.seconds.clear()
                gc.freeze()  # as the daemon does
                gc.set_threshold(*GC_THRESHOLDS)
            daemon.second()
            if scraped:
                daemon.scrape()
        daemon.close()
    return {part: 1000 * seconds / SECONDS for part, seconds in watch.seconds.items()}


def main(scenario: str = "bench-24") -> None:
    idle, scraped = run(scenario, scraped=False), run(scenario, scraped=True)
    rows = [
        {"part": part, "idle ms": idle.get(part, 0.0), "scraped each second ms": milliseconds}
        for part, milliseconds in sorted(scraped.items(), key=lambda item: -item[1])
    ]
    report("A second of the daemon by part, 8 H100 with 24 processes", rows, "python -m qa.bench.tick")


if __name__ == "__main__":
    figures.run("tick", main)
