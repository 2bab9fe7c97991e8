"""The queries of dcgm-exporter's published dashboard and of OpenCost, over a real Prometheus that scrapes
`/metrics/dcgm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.programs import Prometheus, daemon, prometheus, wait_for
from tests.workload.kubelet import Service, listing, serving

pytestmark = [pytest.mark.e2e, pytest.mark.deploy]

NODE = "gpu-node-7"  # as in a pod, whose host name is that of the pod
# Of dashboard 12239, with its variables filled in.
_OF = 'Hostname=~"{host}", gpu=~"(0|1|2|3)"'
QUERIES = [
    "max(DCGM_FI_DEV_GPU_TEMP{OF}) by (Hostname, gpu, uuid)",
    "avg(DCGM_FI_DEV_GPU_TEMP{OF})",
    "max(DCGM_FI_DEV_POWER_USAGE{OF}) by (Hostname, gpu, uuid)",
    "sum(max(DCGM_FI_DEV_POWER_USAGE{OF}) by (gpu))",
    "max(DCGM_FI_DEV_SM_CLOCK{OF} * 1000000) by (Hostname, UUID, gpu)",
    "max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{OF}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    "max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{OF}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    "max(DCGM_FI_DEV_FB_USED{OF}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
]


# Of OpenCost's package for Prometheus: use and kind of the GPUs of each container, and the state of each device.
_CONTAINER = "container, pod, namespace, uid, cluster_id"
_DEVICE = "device, modelName, UUID, GPU_I_PROFILE, GPU_I_ID"
_USED, _FREE = (
    f'avg(avg_over_time(DCGM_FI_DEV_FB_{of}{{container!="",}}[1m])) by ({_CONTAINER})' for of in ("USED", "FREE")
)
OPENCOST = {
    "usage": f'avg(avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{container!=""}}[1m])) by ({_CONTAINER})',
    "peak": f'max(max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{container!=""}}[1m])) by ({_CONTAINER})',
    "memory": f"{_USED} / ({_USED} + {_FREE})",
    "info": 'avg(avg_over_time(DCGM_FI_DEV_DEC_UTIL{container!="",}[1m])) by '
    "(container, pod, namespace, device, modelName, UUID, uid, cluster_id)",
    **{
        name: f"avg(avg_over_time({name}{{}}[1m])) by ({_DEVICE}, cluster_id)"
        for name in (
            "DCGM_FI_DEV_POWER_USAGE",
            "DCGM_FI_DEV_GPU_TEMP",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "DCGM_FI_DEV_FB_USED",
        )
    },
}
# The pod of the exporter, whose labels Prometheus adds where it discovers pods.
_POD = {"namespace": "monitoring", "pod": "gpugauge-x1", "container": "gpugauge"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder: Path = tmp_path_factory.mktemp("dcgm")
    with (
        daemon(folder, "--simulate=h200-gpm", "--web.enable-dcgm", f"--kubernetes.node-name={NODE}") as running,
        prometheus(folder, running.url.removeprefix("http://"), scrape="metrics_path: /metrics/dcgm, ") as database,
    ):
        wait_for(lambda: database.query("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), 30, "Prometheus has scraped the GPUs")
        yield database


@pytest.mark.parametrize("query", QUERIES)
def test_query_of_the_published_dashboard_has_an_answer(database: Prometheus, query: str) -> None:
    grouped = "avg(" not in query and "sum(" not in query
    assert len(database.query(query.replace("{OF}", "{" + _OF.format(host=NODE) + "}"))) == (4 if grouped else 1)


def test_loads_are_those_of_the_scenario(database: Prometheus) -> None:
    loads = {r["metric"]["gpu"]: float(r["value"][1]) for r in database.query("DCGM_FI_DEV_GPU_UTIL")}
    assert len(loads) == 4
    assert min(loads.values()) == 0
    assert max(loads.values()) == pytest.approx(100, abs=5)


@pytest.fixture(scope="module")
def opencost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The answers to OpenCost's queries, with three of four GPUs allocated: one to a container, two to another."""
    folder: Path = tmp_path_factory.mktemp("opencost")
    service, relabel = Service(b""), [{"target_label": name, "replacement": value} for name, value in _POD.items()]
    scrape = f"metrics_path: /metrics/dcgm, honor_labels: true, relabel_configs: {json.dumps(relabel)}, "
    flags = ("--simulate=h200-gpm", "--web.enable-dcgm", f"--kubernetes.kubelet-socket={folder / 'kubelet.sock'}")
    with serving(folder / "kubelet.sock", service), daemon(folder, *flags) as running:
        uuids = {index: uuid for uuid, index in running.series("gpu_info", "uuid", "index")}
        one, two = ({"main": {"nvidia.com/gpu": [uuids[i] for i in indexes]}} for indexes in ("0", "12"))
        service.reply = listing({("ml", "one"): one, ("ml", "two"): two})
        wait_for(lambda: running.series("gpu_allocation_info", "uuid"), 90, "the allocations are read")
        with prometheus(folder, running.url.removeprefix("http://"), scrape=scrape) as server:
            wait_for(lambda: server.query(OPENCOST["info"]), 60, "Prometheus has two scrapes")
            yield {name: server.query(query) for name, query in OPENCOST.items()}


def test_opencost_finds_use_and_memory_of_each_container(opencost: dict[str, list[dict[str, Any]]]) -> None:
    def by_pod(name: str) -> dict[str, float]:
        assert all(
            each["metric"] == {**each["metric"], "namespace": "ml", "container": "main"} for each in opencost[name]
        )
        return {each["metric"]["pod"]: float(each["value"][1]) for each in opencost[name]}

    # The loads and the memory of the scenario: 0.96, then the mean of 0.96 and 1; H200 have 141 GB.
    assert by_pod("usage") == pytest.approx({"one": 0.96, "two": 0.98}, abs=0.08)
    assert by_pod("peak") == pytest.approx({"one": 1, "two": 1}, abs=0.08)
    assert by_pod("memory") == pytest.approx({"one": 96 / 140, "two": 108 / 140}, abs=0.05)


def test_opencost_finds_the_model_of_each_gpu_of_a_container(opencost: dict[str, list[dict[str, Any]]]) -> None:
    found = {(each["metric"]["pod"], each["metric"]["device"]): each["metric"] for each in opencost["info"]}

    assert set(found) == {("one", "nvidia0"), ("two", "nvidia1"), ("two", "nvidia2")}
    assert all("H200" in labels["modelName"] and labels["UUID"].startswith("GPU-") for labels in found.values())


def test_opencost_finds_each_device_once(opencost: dict[str, list[dict[str, Any]]]) -> None:
    for name in OPENCOST:
        if name.startswith("DCGM"):
            assert len({each["metric"]["UUID"] for each in opencost[name]}) == len(opencost[name]) == 4, name
