"""Prometheus with our rules for the simulated fleet."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qa.bench.prometheus import Prometheus, prometheus

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "gpugauge.yaml"
_UNITS = {"s": 1, "m": 60, "h": 3600}
_RANGE = re.compile(r"\b([a-z]\w+)(?:\{([^}]*)\})?\[(\d+)([smh])\]( offset (\d+)([smh]))?")
_LOOKBACK_SECONDS = 300.0  # of Prometheus, for a selector without a range


def windows(names: set[str]) -> dict[str, float]:
    """Return the seconds for which the rules look back, by metric, for those of the names that they read."""
    text = RULES.read_text()
    found = {name: _LOOKBACK_SECONDS for name in re.findall(r"\b[a-z]\w+", text) if name in names}
    for name, _, number, unit, _, offset, offset_unit in _RANGE.findall(text):
        if name in names:
            reach = int(number) * _UNITS[unit] + (int(offset) * _UNITS[offset_unit] if offset else 0)
            found[name] = max(found[name], float(min(reach, 3600)))
    return found


@contextlib.contextmanager
def fleet_prometheus(program: str, nodes: int, server: int, interval: float) -> Iterator[Prometheus]:
    """Run Prometheus with our rules on `nodes` nodes behind one port, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        folder = Path(name)
        shutil.copy(RULES, folder / "rules.yaml")
        # The past of the nodes is older than half a block of the default size.
        blocks = ("--storage.tsdb.min-block-duration=4h", "--storage.tsdb.max-block-duration=4h")
        with prometheus(program, folder, _config(nodes, server, interval), *blocks) as running:
            yield running


def _config(nodes: int, server: int, interval: float) -> Mapping[str, Any]:
    every = f"{interval:g}s"
    targets = [
        {
            "targets": [f"127.0.0.1:{server}"],
            "labels": {"__metrics_path__": f"/node/{node}/metrics", "instance": f"node-{node:04d}"},
        }
        for node in range(nodes)
    ]
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "gpugauge", "static_configs": targets}],
    }
