"""Runs our daemon on the same simulated library as the peer: `python -m bench.ours SIMULATION.json serve [flags]`.

It believes itself on a real node: /proc is the real one and the simulator is in the worker alone, in the place of
libnvidia-ml. So the parent is what it is on a node with GPUs, in memory and in work.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.ledger import VARIABLE
from gpugauge.__main__ import main as gpugauge
from gpugauge.driver.client import Worker
from gpugauge.driver.schedule import Pace
from gpugauge.driver.supervisor import DriverSource
from gpugauge.simulator import WORKER


def main() -> None:
    simulation = json.loads(Path(sys.argv.pop(1)).read_text())
    begin = DriverSource.__init__

    module = "bench.ledger" if VARIABLE in os.environ else WORKER

    def simulated(self: DriverSource, pace: Pace, _: object, __: object = None, *rest: Any, **more: Any) -> None:
        begin(self, pace, partial(Worker, module), simulation, *rest, **more)

    DriverSource.__init__ = simulated  # type: ignore[method-assign, assignment]  # no setting of the daemon does this
    gpugauge()


if __name__ == "__main__":
    main()
