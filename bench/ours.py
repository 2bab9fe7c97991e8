"""Runs our daemon on the same simulated library as the peer: `python -m bench.ours SIMULATION.json serve [flags]`.

The daemon is that of a real node: it reads the real /proc, and only the worker loads the simulator, in place of
libnvidia-ml. Its memory and its work are therefore those on a node with GPUs.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.ledger import VARIABLE
from gpugauge import isolated
from gpugauge.__main__ import main as gpugauge
from gpugauge.driver.client import Worker
from gpugauge.driver.schedule import ReadingIntervals
from gpugauge.driver.supervisor import Supervisor
from gpugauge.simulator import WORKER


def main() -> None:
    simulation = json.loads(Path(sys.argv.pop(1)).read_text())
    begin = Supervisor.__init__

    module = "bench.ledger" if VARIABLE in os.environ else WORKER

    def simulated(
        self: Supervisor, intervals: ReadingIntervals, _: object, __: object = None, *rest: Any, **more: Any
    ) -> None:
        begin(self, intervals, partial(Worker, module), simulation, *rest, **more)

    Supervisor.__init__ = simulated  # type: ignore[method-assign, assignment]  # the daemon has no setting for it
    isolated.forget_current_folder = lambda: None  # bench is in the current folder
    gpugauge()


if __name__ == "__main__":
    main()
