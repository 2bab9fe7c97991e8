"""What the tests ask of an installed gpugauge."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.programs import http

from qa.cluster.cluster import Cluster


def daemon_pods(cluster: Cluster) -> dict[str, Any]:
    """Return the pods of the DaemonSet that are ready and stay, by node."""
    chosen = cluster.items("pods", "-n", "gpugauge", "-l", "app.kubernetes.io/component=node")
    return {
        each["spec"]["nodeName"]: each
        for each in chosen
        if "deletionTimestamp" not in each["metadata"]
        and any(item["type"] == "Ready" and item["status"] == "True" for item in each["status"].get("conditions", []))
    }


def metrics(cluster: Cluster, node: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return labels and values of a metric, as the daemon of a node serves it; none while it is not ready."""
    pod = daemon_pods(cluster).get(node)
    return scraped(pod["status"]["podIP"], name) if pod else []


def scraped(address: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return labels and values of a metric, as the daemon at an address serves it; none while it does not answer."""
    status, body = http(f"http://{address}:10478/metrics")
    if status != 200:
        return []
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == name
    ]


def phase(cluster: Cluster, name: str, namespace: str) -> str:
    """Return the phase of a pod."""
    found: str = cluster.get("pod", name, "-n", namespace)["status"]["phase"]
    return found


def log(cluster: Cluster, name: str, namespace: str, container: str = "training") -> str:
    """Return the log of a container."""
    return cluster.kubectl("logs", name, "-n", namespace, "-c", container)
