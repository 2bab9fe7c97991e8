"""Runs nvitop-exporter on our simulated driver: `python -m bench.peer SCENARIO [its own arguments]`."""

import sys

from gpugauge.driver.simulated.install import install
from gpugauge.driver.simulated.scenario import load_scenario

if __name__ == "__main__":
    install(load_scenario(sys.argv.pop(1)).simulation())
    from nvitop_exporter.cli import main

    sys.exit(main())
