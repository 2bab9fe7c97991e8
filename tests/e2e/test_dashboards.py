"""Every query of every dashboard against a real Prometheus with the rules, fed by simulated exporters."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from gpugauge.artifacts.dashboards.build import DASHBOARDS
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.artifacts.dashboards.dashboard_reading import (
    Asked,
    Json,
    asked_of_prometheus,
    described,
    queries,
    substituted,
    variables,
)
from tests.e2e.programs import Prometheus, daemon, free_port, http, wait_for
from tests.needs import need

pytestmark = pytest.mark.e2e

# Faults of GPUs, beside the scenario `node`, whose processes train, serve and idle.
UNWELL = """\
description: 3 GPUs; errors and a narrow link on the first, the second is lost, the third too hot
gpus:
  - model: h100
    health:
      ecc: [{at: 4, kind: corrected, count: 3}, {at: 5, kind: uncorrected}]
      xids: [{at: 8, xid: 94}]
      recovery_action: 1
      pcie_width: 8
  - {model: h100}
  - {model: h100}
processes:
  - {pid: 6301, gpus: [0], memory: 60GiB, load: 0.9}
  - {pid: 6302, gpus: [2], memory: 50GiB, pipeline: {clock: 0.6}, command: python3 diffusion.py}
faults:
  - {gpu: 1, start: 5, code: gpu_is_lost}
"""
# Jobs by GPU, as a Slurm prolog writes them; GPU 7 is unused.
JOBS = {"4": "88123 20012", "7": "88200 20015"}
# Until every query has series: the slowest readings are taken every 30 s.
MAX_WAIT_SECONDS = 75


def quick_rules() -> str:
    """Return our rules with windows of seconds in place of minutes, and without hold times."""
    tree = rules.groups(
        Parameters(evaluation_interval=1, scrape_interval=1, patience=20, idle_patience=20, min_job_age=1)
    )
    for group in tree["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "1s"
    return yaml.safe_dump(tree)


def settings(targets: Mapping[str, str]) -> str:
    """Return Prometheus' settings for instances and their addresses."""
    # The simulated node has pods, but no kubelet that returns their namespace.
    namespace = {"source_labels": ["workload_kind"], "regex": "pod", "target_label": "workload_namespace"}
    scrape = {
        "job_name": "gpugauge",
        "static_configs": [{"targets": [at], "labels": {"instance": name}} for name, at in targets.items()],
        "metric_relabel_configs": [{**namespace, "replacement": "ml"}],
    }
    paces = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    return yaml.safe_dump({"global": paces, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]})


@contextlib.contextmanager
def exporters(folder: Path) -> Iterator[dict[str, str]]:
    """Run the simulated exporters; yield their addresses by instance, and one without a listener."""
    (folder / "unwell.yaml").write_text(UNWELL)
    (folder / "jobs").mkdir()
    for device, job in JOBS.items():
        (folder / "jobs" / device).write_text(job + "\n")
    flags = {
        "node": ("--simulate=node", f"--slurm.job-mapping-dir={folder / 'jobs'}"),
        "unwell": (f"--simulate={folder / 'unwell.yaml'}",),
        "mig": ("--simulate=a100-mig",),
    }
    with contextlib.ExitStack() as stack:
        targets = {"down": f"127.0.0.1:{free_port()}"}
        for name, given in flags.items():
            (folder / name).mkdir()
            running = stack.enter_context(daemon(folder / name, *given))
            targets[name] = running.url.removeprefix("http://")
        yield targets


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("dashboards")
    with exporters(folder) as targets:
        (folder / "rules.yaml").write_text(quick_rules())
        (folder / "prometheus.yml").write_text(settings(targets))
        url = f"127.0.0.1:{free_port()}"
        files = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}")
        with (folder / "prometheus.log").open("wb") as log:
            command = [need("prometheus"), *files, f"--web.listen-address={url}"]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(lambda: http(f"http://{url}/-/ready")[0] == 200, 30, "Prometheus is ready")
            yield Prometheus(f"http://{url}")
        finally:
            process.terminate()
            process.wait(20)


def found(server: Prometheus, variable: Json, known: Mapping[str, str]) -> list[str]:
    """Return the values of a variable, as Grafana extracts them from the result."""
    query, label = asked_of_prometheus(variable)
    answers = server.query(substituted(query, known))
    if label:
        return sorted({answer["metric"][label] for answer in answers if label in answer["metric"]})
    pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
    matches = [pattern.search(described(answer)) for answer in answers]
    assert all(matches), variable["regex"]
    return sorted({match["value"] if "value" in pattern.groupindex else match[1] for match in matches if match})


def choices(server: Prometheus, dashboard: Json, job: str | None = None) -> dict[str, str]:
    """Return the values of the variables: All where possible, and the job where there is such a variable."""
    known: dict[str, str] = {}
    for variable in variables(dashboard):
        offered = found(server, variable, known)
        if variable["includeAll"] and "allValue" in variable:
            value = variable["allValue"]
        elif variable["multi"]:
            value = f"({'|'.join(offered)})"
        else:
            value = job or next(iter(offered), "")
        known[variable["name"]] = value
    return known


def jobs(server: Prometheus, dashboard: Json) -> list[str | None]:
    """Return all jobs, since no job has every series; None if the dashboard has no variable for the job."""
    named = [variable for variable in variables(dashboard) if variable["name"] == "workload"]
    return list(found(server, named[0], choices(server, dashboard))) if named else [None]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_values(server: Prometheus, name: str) -> None:
    dashboard = DASHBOARDS[name]()

    def empty() -> list[str]:
        known = choices(server, dashboard)
        return [variable["name"] for variable in variables(dashboard) if not found(server, variable, known)]

    wait_for(lambda: not empty(), MAX_WAIT_SECONDS, "every variable has a value")


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_returns_series(server: Prometheus, name: str) -> None:
    dashboard = DASHBOARDS[name]()
    left: set[Asked] = set(queries(dashboard))
    assert len(left) > 15

    def answered() -> bool:
        for job in jobs(server, dashboard):
            known = choices(server, dashboard, job)
            left.difference_update([asked for asked in left if server.query(substituted(asked.text, known))])
        return not left

    try:
        wait_for(answered, MAX_WAIT_SECONDS, "every query returns series")
    except AssertionError:
        assert sorted(asked.where for asked in left) == []


def test_the_device_variable_shows_the_index(server: Prometheus) -> None:
    device = next(variable for variable in variables(DASHBOARDS["node"]()) if variable["name"] == "uuid")
    query, _ = asked_of_prometheus(device)
    pattern = re.compile(device["regex"].strip("/").replace("(?<", "(?P<"))

    answers = server.query(substituted(query, {"job": ".*", "instance": "node"}))
    shown = {match["text"]: match["value"] for answer in answers if (match := pattern.search(described(answer)))}

    assert shown.keys() == set("01234567")
    assert all(value.startswith("GPU-") for value in shown.values())
