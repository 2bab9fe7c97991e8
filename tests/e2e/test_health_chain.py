"""Real Prometheus with the rules, the oldest and the current version: a GPU with an error that is reset later, and a
machine that was bad before.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.e2e.programs import Prometheus, daemon, http, prometheus, prometheus3, wait_for
from tests.needs import need

pytestmark = pytest.mark.e2e

# The scenario `gpu-reset`: the error, and the reset.
ERROR, RESET = 20.0, 80.0
SLOW = 30.0  # seconds between two readings of the GPU's health
Alert = dict[str, Any]


@dataclass
class Chain:
    """The servers, the node of each daemon, and the time at which the daemon with the later reset started."""

    servers: list[Prometheus]
    failing: str
    bad: str
    start: float

    def alerts(self, node: str) -> dict[str, Alert]:
        """Return the firing alerts about GPUs of a node by name and index; those that all servers agree on."""
        found = [self._firing(server, node) for server in self.servers]
        return {name: alert for name, alert in found[0].items() if all(name in other for other in found)}

    def silent(self, node: str) -> bool:
        """Return whether no server has an alert about a GPU of the node."""
        return not any(self._firing(server, node) for server in self.servers)

    @staticmethod
    def _firing(server: Prometheus, node: str) -> dict[str, Alert]:
        status, body = http(f"{server.url}/api/v1/alerts")
        assert status == 200
        found = json.loads(body)["data"]["alerts"]
        firing = [a for a in found if a["state"] == "firing" and a["labels"].get("instance") == node]
        return {f"{a['labels']['alertname']} {a['labels']['index']}": a for a in firing if "index" in a["labels"]}

    @property
    def second(self) -> float:
        """The second of the scenario, or a little later."""
        return time.monotonic() - self.start


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("health")
    tree = rules.groups(Parameters(keep_firing=1, evaluation_interval=1))
    kept = [group for group in tree["groups"] if group["name"] == "gpugauge-devices"]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": kept}))
    folders = [folder / name for name in ("failing", "bad", "oldest", "current")]
    for each in folders:
        each.mkdir()
    start = time.monotonic()
    with (
        daemon(folders[0], "--simulate=gpu-reset") as failing,
        daemon(folders[1], "--simulate=bad-from-start") as bad,
    ):
        nodes = [each.url.removeprefix("http://") for each in (failing, bad)]
        wait_for(lambda: "gpu_remapped_rows_pending" in bad.metrics(), 60, "the health of the GPUs is read")
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(prometheus(place, *nodes, rules=folder / "rules.yaml", program=program))
                for place, program in zip(folders[2:], (need("prometheus"), prometheus3("prometheus")), strict=True)
            ]
            yield Chain(servers, nodes[0], nodes[1], start)


def test_what_was_bad_before_the_first_scrape_fires_with_xid_node_and_index(chain: Chain) -> None:
    wanted = {"GpuXidReset 1", "GpuRowRemapFailed 2", "GpuNeedsReset 4", "GpuUncorrectedEcc 4", "GpuXidWorkflow 4"}
    wait_for(lambda: wanted <= chain.alerts(chain.bad).keys(), 60, f"{wanted} fire")
    alerts = chain.alerts(chain.bad)
    reset, xid = alerts["GpuNeedsReset 4"], alerts["GpuXidReset 1"]

    assert alerts.keys() - wanted == {"GpuXidReset 2", "GpuResetPending 4"}  # the failed remap is Xid 64
    assert reset["annotations"]["summary"].startswith("GPU 4 on ")
    host, _, _ = chain.bad.rpartition(":")
    summary = f"on {host} needs recovery: the driver requires a reboot of the node after an error"
    assert reset["annotations"]["summary"].endswith(summary)
    others = "Also: a faulty memory row waits to be remapped, had Xid 48 (Double bit ECC error), had unc"
    assert others in reset["annotations"]["description"]
    assert reset["labels"].keys() == {"alertname", "severity", "action", "reason", "instance", "uuid", "index"}
    assert xid["annotations"]["summary"].endswith(f"on {host} had Xid 119 (GSP RPC timeout)")


def test_a_failing_gpu_fires_until_its_reset(chain: Chain) -> None:
    wanted = {"GpuNeedsReset 1", "GpuResetPending 1", "GpuUncorrectedEcc 1", "GpuNvlinkErrors 1", "GpuXidWorkflow 1"}
    wait_for(lambda: wanted == chain.alerts(chain.failing).keys(), ERROR + SLOW + 20, f"{wanted} fire")
    assert chain.second >= ERROR
    summary = chain.alerts(chain.failing)["GpuNeedsReset 1"]["annotations"]["summary"]
    assert summary.endswith("the driver requires a reset of the GPU after an error")
    first = chain.alerts(chain.failing)["GpuNeedsReset 1"]
    assert "Xid 48 (Double bit ECC error)" in first["annotations"]["description"]

    wait_for(lambda: chain.silent(chain.failing), RESET + SLOW + 20, "all alerts of the GPU resolve")
    assert chain.second >= RESET

    # Without a gap between the error and the reset.
    for server in chain.servers:
        names = server.query(f'resets(ALERTS{{instance="{chain.failing}",alertstate="firing"}}[5m])')
        assert {series["metric"]["alertname"] for series in names} == {name.split()[0] for name in wanted}
    bad = chain.alerts(chain.bad)
    assert {"GpuNeedsReset 4", "GpuXidReset 1", "GpuRowRemapFailed 2"} <= bad.keys()
