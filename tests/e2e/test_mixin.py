"""The mixin as a platform uses it: rendered by Jsonnet, and loaded by Prometheus' and VictoriaMetrics' own programs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts.rules.test_mixin import MIXIN, groups
from tests.e2e.programs import victoria
from tests.e2e.ruletester import promtools

pytestmark = [pytest.mark.e2e, pytest.mark.deploy]

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"selector": 'env!~"test|x%q",team="50%"', "threshold": 0.375, "clusterLabel": ""},
    {"clusterLabel": "k8s_cluster", "dashboardUrl": "https://grafana.example/", "severities": {"GpuLost": "info"}},
)


def test_each_configuration_is_loaded(tmp_path: Path) -> None:
    for number, config in enumerate(CONFIGS):
        rendered = groups(MIXIN, config)
        for group in rendered:
            group["name"] += f"-{number}"
        (tmp_path / f"{number}.json").write_text(json.dumps({"groups": rendered}))
    files = sorted(map(str, tmp_path.glob("*.json")))
    commands = [
        *([tool, "check", "rules", *files] for tool in promtools()),
        [victoria("vmalert"), "-dryRun", f"-rule={tmp_path}/*.json"],
    ]

    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
