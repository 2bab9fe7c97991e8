"""The configurations of deploy/prometheus, checked by Prometheus' and Alertmanager's own tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.documents import ROOT
from tests.needs import need

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "name", ["prometheus.yaml", "prometheus-compose.yaml", "prometheus-kubernetes.yaml", "remote-write.yaml"]
)
def test_prometheus_accepts_the_configuration(name: str, tmp_path: Path) -> None:
    folder = ROOT / "deploy" / "prometheus"
    shutil.copytree(folder / "rules", tmp_path / "rules")
    text = (folder / name).read_text()
    # Beside its rules, as in deploy. Debian's Prometheus is built without service discovery for Kubernetes.
    file = tmp_path / name
    file.write_text(
        text.replace("kubernetes_sd_configs:", "static_configs:").replace("- role: pod", "- targets: [pod]")
    )
    done = subprocess.run([need("promtool"), "check", "config", str(file)], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_alertmanager_accepts_the_configuration_and_routes_by_cause() -> None:
    file = str(ROOT / "deploy" / "prometheus" / "alertmanager.yaml")

    def route(*labels: str) -> str:
        command = [need("amtool"), "config", "routes", "test", f"--config.file={file}", *labels]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert route("alertname=TrainingLimitedByThrottled", "severity=warning") == "platform"
    assert route("alertname=TrainingLimitedByDataLoading", "severity=warning") == "owners"
    assert route("alertname=GpuLost", "severity=critical", "action=drain") == "drain,on-call"
    assert route("alertname=GpuNeedsReset", "severity=critical", "action=reset") == "drain,on-call"
    assert route("alertname=GpuResetPending", "severity=warning", "action=reset_later") == "drain,platform"
    assert route("alertname=GpuNvlinkErrors", "severity=warning") == "platform"
    assert route("alertname=SomethingElse") == "platform"
