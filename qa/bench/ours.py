"""Runs our daemon on the same simulated library as the peer: `python -m qa.bench.ours SIMULATION.json serve [flags]`.

The daemon is that of a real node: it reads the real /proc, and only the worker (qa.bench.simulated) loads the
simulator, in place of libnvidia-ml. Its start, its memory and its work are therefore those on a node with GPUs.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from gpugauge.__main__ import main as gpugauge
from gpugauge.base import guard, isolated
from gpugauge.driver.vendors.nvidia import NVIDIA

THREADS = "BENCH_THREADS"  # the environment variable with the path of a file, written on SIGUSR2: see qa.bench.parts


def _write_clocks(*_: object) -> None:
    """Write the CPU seconds of each thread by its name."""
    clocks = {t.name: time.clock_gettime(time.pthread_getcpuclockid(t.ident or 0)) for t in threading.enumerate()}
    path = Path(os.environ[THREADS])
    path.with_suffix(".new").write_text(json.dumps(clocks))
    path.with_suffix(".new").rename(path)


def main() -> None:
    if THREADS in os.environ:
        signal.signal(signal.SIGUSR2, _write_clocks)
        guard.Loop.begin = guard.Loop.start  # type: ignore[method-assign]  # others are not listed by threading
    os.environ["BENCH_SIMULATION"] = str(Path(sys.argv.pop(1)).absolute())  # the worker starts elsewhere
    object.__setattr__(NVIDIA, "worker", "qa.bench.simulated")  # the daemon has no setting for it
    isolated.forget_current_folder = lambda: None  # bench is in the current folder
    gpugauge()


if __name__ == "__main__":
    main()
