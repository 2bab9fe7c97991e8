"""Stage `job`: a Job of four pods with the hook, two on each node, is one job in the metrics and in Alertmanager."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import NODES, Cluster, until, version
from tests.cluster.installed import daemon_pods, metrics
from tests.cluster.objects import PYTHON, TRAINING_ENV, apply, namespace, pod
from tests.e2e.documents import ROOT
from tests.e2e.programs import free_port, http
from tests.e2e.test_chain import Webhook, webhook
from tests.needs import need

pytestmark = pytest.mark.cluster

SPACE, NAME = "research", "train-llm"
IDENTITY = ("workload_job_kind", "workload_namespace", "workload_job")
PATIENCE = 20
# A training that stops making progress: the only trouble that needs no GPU.
STALL = "from tests.e2e.workloads import stall"


@pytest.fixture
def job(installed: Cluster) -> Iterator[Cluster]:
    """Return the cluster with the running Job; each node has GPUs for two of its pods."""
    namespace(installed, SPACE)
    template = pod("any", SPACE, [PYTHON, "-c", STALL], env={**TRAINING_ENV, "BEGUN": "/tmp/begun"}, gpus=1)
    indexed = {"completionMode": "Indexed"} if version() >= (1, 24) else {}
    spec = {"parallelism": 4, "completions": 4, "backoffLimit": 0, **indexed, "template": {"spec": template["spec"]}}
    apply(
        installed,
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": NAME, "namespace": SPACE}, "spec": spec},
    )
    yield installed
    installed.kubectl("delete", "namespace", SPACE)


def identities(cluster: Cluster) -> list[tuple[str, ...]]:
    """Return the job of each training process of both nodes."""
    return [
        tuple(labels[name] for name in IDENTITY)
        for node in NODES
        for labels, _ in metrics(cluster, node, "torch_process_info")
    ]


@contextlib.contextmanager
def alerting(cluster: Cluster, folder: Path, hook: Webhook) -> Iterator[str]:
    """Run Prometheus with our rules on both nodes, and Alertmanager with the example; yield Prometheus' address."""
    stack = _stack()
    ports = {name: free_port() for name in ("prometheus", "alertmanager", "cluster")}
    gpugauge = str(Path(sys.executable).parent / "gpugauge")
    made = subprocess.run([gpugauge, "rules", *stack.rules(PATIENCE)], check=True, capture_output=True, text=True)
    (folder / "rules.yaml").write_text(made.stdout)
    (folder / "alertmanager.yaml").write_text(stack.alertmanager_config(hook.url, PATIENCE))
    tree = yaml.safe_load(stack.prometheus_config(folder / "rules.yaml", 0, ports["alertmanager"]))
    # As prometheus-kubernetes.yaml makes them of the pods: `instance` is the node's name.
    tree["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"{each['status']['podIP']}:10478"], "labels": {"instance": node}}
        for node, each in daemon_pods(cluster).items()
    ]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(tree))
    listen = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    commands = {
        "prometheus": [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"],
        "prometheus-alertmanager": [
            *(f"--config.file={folder / 'alertmanager.yaml'}", f"--storage.path={folder / 'alerts'}"),
            f"--cluster.listen-address={listen['cluster']}",
        ],
    }
    running = []
    try:
        for name, options in commands.items():
            address = listen[name.removeprefix("prometheus-")]
            with (folder / f"{name}.log").open("wb") as log:
                command = [need(name), *options, f"--web.listen-address={address}"]
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
            until(lambda a=address: http(f"http://{a}/-/ready")[0] == 200, 30, f"{name} is ready")  # type: ignore[misc]
        yield f"http://{listen['prometheus']}"
    finally:
        for process in running:
            process.terminate()
            process.wait(20)


def _stack() -> Any:
    """Return the module of `make demo-stack`, which is a program and not part of a package."""
    spec = importlib.util.spec_from_file_location("demo_stack", ROOT / "deploy" / "demo" / "stack.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_job_and_one_notification(job: Cluster, tmp_path: Path) -> None:
    seen: set[tuple[str, ...]] = set()

    def complete() -> bool:
        found = identities(job)
        seen.update(found)
        return len(found) == 4

    with webhook() as hook, alerting(job, tmp_path, hook) as prometheus:
        until(complete, 120, "four training processes")
        until(hook.alerts, 6 * PATIENCE, "a notification")
        query = "count by (workload_job_kind, workload_namespace, workload_job) (torch_process_info)"
        body = json.loads(http(f"{prometheus}/api/v1/query?query={query.replace(' ', '%20')}")[1])
        alerts: list[dict[str, Any]] = hook.alerts()

    assert seen == {("job", SPACE, NAME)}  # from the first scrape on
    assert [each["value"][1] for each in body["data"]["result"]] == ["4"]
    assert len(hook.notifications) == 1
    assert [tuple(each["labels"][name] for name in IDENTITY) for each in alerts] == [("job", SPACE, NAME)]
    assert {each["labels"]["alertname"] for each in alerts} == {"TrainingStalled"}
