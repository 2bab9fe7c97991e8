"""CPU time of the worker per tick, by our code, NVIDIA's binding and the simulator: `python -m qa.bench.worker`.

8 H100 with 24 processes, every group at its interval. The simulator runs in virtual time: only work is measured.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from gpugauge.daemon.assembly import READING_INTERVALS
from gpugauge.driver.frames import frame
from gpugauge.driver.nvidia.nvml import use_library, used_library
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.simulator.worker import service as simulated_service
from qa.bench import figures
from qa.bench.report import report

TICKS, WARM = 300, 60


class Stopwatch:
    """Wraps the simulated library and adds up the time spent in each function."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.seconds: dict[str, float] = defaultdict(float)

    def __getattr__(self, function: str) -> Callable[..., int]:
        inner = getattr(self._library, function)

        def call(*arguments: Any) -> int:
            began = time.perf_counter()
            code: int = inner(*arguments)
            self.seconds[function] += time.perf_counter() - began
            return code

        return call


def main(scenario: str = "bench-24") -> None:
    simulation = load_scenario(scenario).simulation()
    simulation["start"] = {"monotonic": 0.0, "unix": 1_790_000_000.0}
    now = [0.0]
    service = simulated_service(lambda: now[0])
    count = service.answer({"id": 0, "op": "open", "simulate": simulation}).values["driver"]["device_count"]
    watch = Stopwatch(used_library())
    use_library(watch)
    called: dict[str, list[float]] = {}
    sending = total = 0.0
    ours, theirs = socket.socketpair()
    for channel in (ours, theirs):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for tick in range(WARM + TICKS):
        now[0] = float(tick)
        if tick == WARM:
            called, sending, total = {}, 0.0, 0.0
            watch.seconds.clear()
        groups = [group for group, every in READING_INTERVALS.items() if tick % every == 0]
        for index in range(count):
            began = time.perf_counter()
            request = {
                "id": tick,
                "op": "read",
                "index": index,
                "groups": ["static", *READING_INTERVALS] if tick == 0 else groups,
            }
            request["calls"] = index + 1 == count
            answer = service.message(request)
            read = time.perf_counter()
            ours.sendall(frame(answer))
            ended = time.perf_counter()
            sending, total = sending + ended - read, total + ended - began
            theirs.recv(1 << 20)
            for function, (number, seconds, _) in answer.get("calls", {}).items():
                counted = called.setdefault(function, [0, 0.0])
                counted[0], counted[1] = counted[0] + number, counted[1] + seconds
    _report(total, sending, called, watch.seconds)
    service.close()


def _report(total: float, sending: float, called: dict[str, list[float]], simulator: dict[str, float]) -> None:
    """Print milliseconds per tick by part, and the functions with the longest time."""
    library = sum(seconds for _, seconds in called.values())
    simulated = sum(simulator.values())
    parts = {
        "our code": total - library - sending,
        "our code: encoding and sending": sending,
        "pynvml": library - simulated,
        "simulator": simulated,
    }
    rows = [
        {"part": part, "ms a tick": 1e3 * seconds / TICKS, "% of a core": 100 * seconds / TICKS, "calls a tick": ""}
        for part, seconds in parts.items()
    ]
    for function, (number, seconds) in sorted(called.items(), key=lambda item: item[1][1], reverse=True)[:8]:
        bare = seconds - simulator[function]
        rows.append(
            {
                "part": f"pynvml: {function}",
                "ms a tick": 1e3 * bare / TICKS,
                "% of a core": 100 * bare / TICKS,
                "calls a tick": number / TICKS,
            }
        )
    report("The worker by part, 8 H100 with 24 processes, ms a second", rows, "python -m qa.bench.worker")


if __name__ == "__main__":
    figures.run("worker", main)
