"""A real Prometheus that is restarted, in seconds instead of minutes: no alert ends at the Alertmanager meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.drawn import draws
from tests.e2e.programs import listening, prometheus3, wait_for
from tests.needs import need

from gpugauge.artifacts.rules import pack as rules
from qa.bench.alerts.jobs import slurm_job
from qa.worlds.alert_fleet import FAST, Node, daemons

pytestmark = [pytest.mark.e2e, pytest.mark.everything, pytest.mark.timeout(300)]

# Minutes as seconds: the grace period, the time between two notifications, and with it an alert's validity (4 times).
SCALED = (
    "--rules.alert.for-grace-period=10s",
    "--rules.alert.resend-delay=1s",
    "--rules.alert.for-outage-tolerance=60s",
)
EXPECTED = {"TrainingLoadLow", "GpuXidReset", "GpuRowRemapFailed", "GpuNeedsReset", "ExporterDown"}


def test_no_alert_resolves_over_a_restart(tmp_path: Path) -> None:
    posted: list[tuple[float, list[dict[str, Any]]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((time.time(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log no requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    nodes = {"low": Node(slurm_job()["node-1"], "node-1", "east"), "bad": Node("bad-from-start", "node-3", "east")}
    program = (need("prometheus"), prometheus3("prometheus"))[draws(1, 2)[0]]
    with daemons(tmp_path, nodes) as addresses:
        config = tmp_path / "prometheus.yaml"
        (tmp_path / "rules.yaml").write_text(rules.as_prometheus(FAST))
        targets = [{"targets": [addresses[n]], "labels": {"instance": n, "cluster": "east"}} for n in nodes]
        targets.append({"targets": ["127.0.0.1:1"], "labels": {"instance": "gone", "cluster": "east"}})
        tree = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "2s"},
            "rule_files": [str(tmp_path / "rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}]},
            "scrape_configs": [{"job_name": "gpugauge", "static_configs": targets}],
        }
        config.write_text(yaml.safe_dump(tree))
        flags = (f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", *SCALED)

        def names() -> set[str]:
            return {alert["labels"]["alertname"] for _, alerts in posted for alert in alerts}

        with listening(tmp_path / "first.log", program, *flags):
            wait_for(lambda: names() >= EXPECTED, 120, "the alerts fire")
        before = len(posted)
        with listening(tmp_path / "second.log", program, *flags):
            again = time.time() + 15  # longer than any validity, and than `settle`
            wait_for(lambda: posted[-1][0] > again, 60, "the alerts are sent again")
    server.shutdown()
    server.server_close()
    assert len(posted) > before
    valid: dict[str, float] = defaultdict(lambda: float("inf"))
    for at, alerts in posted:
        for alert in alerts:
            key = json.dumps(alert["labels"], sort_keys=True)
            assert at < valid[key], f"resolved {at - valid[key]:.1f} s before: {key}"
            valid[key] = datetime.fromisoformat(alert["endsAt"].replace("Z", "+00:00")[:19] + "+00:00").timestamp() + 1
