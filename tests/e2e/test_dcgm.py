"""The queries of dcgm-exporter's published dashboard, over a real Prometheus that scrapes `/metrics/dcgm`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.programs import Prometheus, daemon, prometheus, wait_for

pytestmark = pytest.mark.e2e

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


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder: Path = tmp_path_factory.mktemp("dcgm")
    with (
        daemon(folder, "--simulate=h200-gpm", "--web.enable-dcgm") as running,
        prometheus(folder, running.url.removeprefix("http://"), scrape="metrics_path: /metrics/dcgm, ") as database,
    ):
        wait_for(lambda: database.query("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), 30, "Prometheus has scraped the GPUs")
        yield database


@pytest.mark.parametrize("query", QUERIES)
def test_query_of_the_published_dashboard_has_an_answer(database: Prometheus, query: str) -> None:
    grouped = "avg(" not in query and "sum(" not in query
    assert len(database.query(query.replace("{OF}", "{" + _OF.format(host=socket.gethostname()) + "}"))) == (
        4 if grouped else 1
    )


def test_loads_are_those_of_the_scenario(database: Prometheus) -> None:
    loads = {r["metric"]["gpu"]: float(r["value"][1]) for r in database.query("DCGM_FI_DEV_GPU_UTIL")}
    assert len(loads) == 4
    assert min(loads.values()) == 0
    assert max(loads.values()) == pytest.approx(100, abs=5)
