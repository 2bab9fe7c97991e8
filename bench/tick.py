"""CPU of a second of the daemon by part, idle and scraped each second: `python -m bench.tick`.

8 H100 with 24 processes at the daemon's own pace, in virtual time and one thread: nothing but work is measured. Threads
that wake up and processes that talk cost more on top; `bench.cost` has the whole.
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

from bench.report import report
from gpugauge.daemon.app import COLLECT
from gpugauge.simulator.scenario.load import load_scenario

SECONDS, WARM = 300, 60
T = TypeVar("T")


class Stopwatch:
    """CPU seconds by part, of this thread alone: collectors may leave work to others."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def __call__(self, part: str, work: Callable[[], T], /) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            self.seconds[part] += time.thread_time() - began


def run(scenario: str, *, scraped: bool) -> dict[str, float]:
    """Return milliseconds a second by part."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        daemon = VirtualDaemon(load_scenario(scenario), Path(folder), watch)
        for second in range(WARM + SECONDS):
            if second == WARM:
                watch.seconds.clear()
                gc.freeze()  # as the daemon does
                gc.set_threshold(*COLLECT)
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
    report("A second of the daemon by part, 8 H100 with 24 processes", rows, "python -m bench.tick")


if __name__ == "__main__":
    main()
