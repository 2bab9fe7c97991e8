import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters

DEPLOY = Path(__file__).parents[2] / "deploy"
SLURM = DEPLOY / "prometheus" / "slurm"


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "prometheus" / name).read_text())


def test_every_alert_has_one_route() -> None:
    routes = load("alertmanager.yaml")["route"]["routes"]
    by_name = [found for route in routes for found in re.findall(r'alertname=~"(.*)"', "".join(route["matchers"]))]
    alerts = {alert.name for alert in rules.alerts(Parameters(critical=0.2, per_cause=True))}
    # The first route that matches is taken, so the last one may match more.
    taken = {name: next((regex for regex in by_name if re.fullmatch(regex, name)), None) for name in alerts}

    assert len(by_name) >= 3
    assert [
        f"alert {name} has no route in deploy/prometheus/alertmanager.yaml"
        for name, regex in taken.items()
        if regex is None
    ] == []
    assert set(taken.values()) == set(by_name)


def test_every_receiver_exists() -> None:
    config = load("alertmanager.yaml")
    used = {config["route"]["receiver"], *(route["receiver"] for route in config["route"]["routes"])}

    assert used == {receiver["name"] for receiver in config["receivers"]}


def test_remote_write_keeps_metrics_that_exist() -> None:
    (rule,) = load("remote-write.yaml")["remote_write"][0]["write_relabel_configs"]
    named = rule["regex"].split("|")

    assert len(named) == len(set(named))
    # The prefixes of the recorded series.
    recorded = {"gpugauge:gpu[_:].+", "gpugauge:job_.+", "gpugauge:user_.+"}
    assert set(named) - {row.name for row in catalog.metrics()} == {"up", *recorded}


@pytest.mark.parametrize("name", ["prometheus.yaml", "prometheus-compose.yaml", "prometheus-kubernetes.yaml"])
def test_instance_is_the_name_of_the_machine(name: str) -> None:
    for job in load(name)["scrape_configs"]:
        assert "instance" in {rule.get("target_label") for rule in job["relabel_configs"]}


def run(script: str, folder: Path, job: str, devices: str = "") -> None:
    variables = {"GPUGAUGE_JOBS": str(folder), "SLURM_JOB_ID": job, "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": devices}
    subprocess.run([SLURM / script], env={"PATH": os.environ["PATH"], **variables}, check=True)


def test_slurm_prolog_never_fails_a_job(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    run("prolog.sh", blocked / "jobs", "41", "0")
    run("epilog.sh", tmp_path / "nothing", "41")

    assert blocked.is_file()


def test_cdi_description_is_json() -> None:
    cdi = json.loads((DEPLOY / "kubernetes" / "components" / "cdi" / "gpugauge.json").read_text())

    assert cdi["kind"] == "gpugauge.dev/hook"
