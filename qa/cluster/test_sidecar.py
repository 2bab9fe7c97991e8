"""Stage `sidecar`: native sidecars beside trainings that do not run as root, where the level `baseline` is enforced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.programs import http

from qa.cluster import gpus
from qa.cluster.cluster import Cluster, until
from qa.cluster.objects import PYTHON, TRAINING_ENV, kustomization, namespace, pod

pytestmark = pytest.mark.cluster


def job(cluster: Cluster, folder: Path, space: str, name: str, out: str) -> None:
    """Apply a Job with the sidecar, whose training writes a file at its end."""
    # The component sets PYTHONPATH.
    script = f"PYTHONPATH=$PYTHONPATH:{TRAINING_ENV['PYTHONPATH']} exec {PYTHON} {gpus.WORKLOADS}/small.py 20 {out}"
    spec = pod(name, space, ["sh", "-c", script], gpus=1, hook=False)["spec"]
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": space, "labels": {"gpugauge.dev/inject": "sidecar"}},
        "spec": {"backoffLimit": 0, "template": {"spec": {**spec, "terminationGracePeriodSeconds": 30}}},
    }
    folder.mkdir()
    kustomization(folder, "sidecar/component", "image")
    document = yaml.safe_load((folder / "kustomization.yaml").read_text())
    components = [*document.pop("resources"), *document["components"]]
    (folder / "job.yaml").write_text(yaml.safe_dump(made))
    chosen = {"namespace": space, "resources": ["job.yaml"], "components": components}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(chosen))
    cluster.kubectl("apply", "-k", str(folder))


def of_job(cluster: Cluster, space: str, name: str) -> Any:
    """Return the pod of a Job, None before there is one."""
    return next(iter(cluster.items("pods", "-n", space, "-l", f"job-name={name}")), None)


@pytest.mark.shows("The daemon starts before the training and ends after it, and a Job completes")
@pytest.mark.parametrize(
    ("name", "out", "condition", "reason"),
    [("good", "/tmp/out", "Complete", "finished"), ("bad", "/nowhere/out", "Failed", "error")],
)
def test_a_job_with_a_sidecar(
    cluster: Cluster, tmp_path: Path, name: str, out: str, condition: str, reason: str
) -> None:
    space = namespace(cluster, f"sidecar-{name}", "baseline")
    job(cluster, tmp_path / "job", space, name, out)
    reports: list[dict[str, str]] = []
    ends: set[str] = set()

    def conditions() -> Any:
        """Scrape the sidecar while it answers, as a Prometheus does, and return the conditions of the ended Job."""
        running = of_job(cluster, space, name)
        address = running and running["status"].get("podIP")
        if address:
            try:
                status, body = http(f"http://{address}:10478/metrics")
            except OSError:
                status, body = 0, b""
            if status == 200:
                families = text_string_to_metric_families(body.decode())
                samples = [sample for family in families for sample in family.samples]
                reports.extend(each.labels for each in samples if each.name == "torch_process_info")
                ended = [each for each in samples if each.name == "gpugauge_trainings_ended_total" and each.value]
                ends.update(each.labels["reason"] for each in ended)
        stated = cluster.get("job", name, "-n", space)["status"].get("conditions", [])
        return [each["type"] for each in stated if each["status"] == "True" and each["type"] in {"Complete", "Failed"}]

    found = until(conditions, f"the Job {name} ends")
    last = of_job(cluster, space, name)
    sidecars = [each for each in last["status"]["initContainerStatuses"] if each["name"] == "gpugauge"]
    events = cluster.events("Pod", last["metadata"]["name"], space)
    cluster.kubectl("delete", "namespace", space, "--wait=false")

    assert condition in found
    assert [each["state"]["terminated"]["exitCode"] for each in sidecars] == [0]
    named = [row for row in reports if row["workload_job"]]
    assert {(row["workload_job_kind"], row["workload_job"], row["workload_namespace"]) for row in named} == {
        ("job", name, space)
    }
    assert ends == {reason}
    assert "probe failed" not in events
