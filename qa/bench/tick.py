"""CPU time of a tick of the daemon by part, idle and scraped every second: `python -m qa.bench.tick`.

8 H100 with 24 processes, and a large node, at the reading intervals of the daemon, in virtual time and one thread.
Wake-ups of threads and messages between processes are not included; `qa.bench.cost` measures the whole daemon.
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
from gpugauge.simulator.scenario.load import Scenario, load_scenario, parse_scenario
from qa.bench import figures, nodes
from qa.bench.report import report

SECONDS, WARM_UP = 300, 60
IDLE_SECONDS = 5.0  # between two ticks without scrapes
LARGE = 64, range(5000, 5200)  # GPUs, and pids
ALL = "tick, all"
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


def run(scenario: Scenario, every: float, *, scraped: bool) -> dict[str, float]:
    """Return milliseconds of a tick by part, with `every` seconds from one to the next."""
    watch, ticks = Stopwatch(), range(round((WARM_UP + SECONDS) / every))
    with tempfile.TemporaryDirectory() as folder:
        daemon = VirtualDaemon(scenario, Path(folder), watch)
        for tick in ticks:
            if tick == WARM_UP / every:
                watch.seconds.clear()
                gc.freeze()  # as the daemon does
                gc.set_threshold(*GC_THRESHOLDS)
            daemon.second()
            daemon.now += every - 1.0
            if scraped:
                daemon.scrape()
        daemon.close()
    return {part: 1000 * seconds * every / SECONDS for part, seconds in watch.seconds.items()}


def main() -> None:
    large = parse_scenario(nodes.scenario(*LARGE), "large", "large")
    found = {
        "idle": run(load_scenario("bench-24"), IDLE_SECONDS, scraped=False),
        "scraped": run(load_scenario("bench-24"), 1.0, scraped=True),
        "large": run(large, 1.0, scraped=True),
    }
    rows = [
        {"part": part} | {f"{name} ms": parts.get(part, 0.0) for name, parts in found.items()}
        for part in sorted(found["scraped"], key=lambda part: -found["scraped"][part])
    ]
    shares = {
        f"{name}-{part.removeprefix('collector ')}": f"{100 * spent / parts[ALL]:.0f}"
        for name, parts in found.items()
        for part, spent in parts.items()
        if " " not in part.removeprefix("collector ")
    }
    report(
        "A tick of the daemon by part, 8 H100 with 24 processes",
        rows,
        "python -m qa.bench.tick",
        [
            f"Idle is a tick each {IDLE_SECONDS:g} s, the others are each second with a scrape; large is a node of "
            f"{LARGE[0]} H100 with {len(LARGE[1])} processes. Collectors and exposition are parts of the tick."
        ],
        figures=shares,
    )


if __name__ == "__main__":
    figures.run("tick", main)
