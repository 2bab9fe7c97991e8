"""Every query of docs/queries.md, against a real Prometheus with an hour of known data."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.workload.identity import Workload
from tests.e2e.programs import Prometheus, prometheus
from tests.needs import need
from tests.status.statusfacts import ROWS, workload

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parent.parent.parent / "docs" / "queries.md"
QUERIES: dict[str, str] = dict(
    re.findall(r"^## (.+?)\n.*?```promql\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)
STEP, SECONDS = 15, 4200
GIB = 1 << 30

# By GPU: the share of time in which it is busy, and its allocations.
POD0, POD1 = Workload("pod", "ml", "trainer-0", "main"), Workload("pod", "ml", "trainer-1", "main")
SERVE_A, SERVE_B = Workload("pod", "web", "serve-a", "main"), Workload("pod", "web", "serve-b", "main")
DEVICES: dict[str, tuple[float, tuple[Workload, ...]]] = {
    "GPU-0": (0.9, (POD0,)),
    "GPU-1": (0.0, (POD1,)),
    "GPU-2": (0.45, (SERVE_A, SERVE_B)),
    "GPU-3": (0.5, (Workload("slurm", job_id="77"),)),
    "GPU-4": (0.0, ()),
    "GPU-5": (0.2, (Workload("pod", "web", "lazy", "main"),)),
    "GPU-6": (0.0, (Workload("slurm", job_id="78", user="eve"),)),
}
UNACCOUNTED = {"GPU-2": 0.05}
# By process: GPU, GiB, share of the GPU's time, and workload.
PROCESSES: dict[str, tuple[str, int, float, Workload]] = {
    "p0": ("GPU-0", 40, 0.9, Workload("pod", "ml", "trainer-0", "main", "", "1000", "train.py", "", "job", "fit")),
    "p1": ("GPU-1", 30, 0.0, Workload("pod", "ml", "trainer-1", "main", "", "1001", "ipykernel", "", "job", "fit")),
    "p2": ("GPU-2", 10, 0.3, Workload("pod", "web", "serve-a", "main", "", "1002", "serve.py", "", "deployment", "a")),
    "p3": ("GPU-2", 10, 0.1, Workload("pod", "web", "serve-b", "main", "", "1000", "serve.py", "", "deployment", "b")),
    "p4": ("GPU-3", 60, 0.5, Workload("slurm", user="ann", command="fit.py", job_kind="slurm", job="77")),
    "p5": ("GPU-5", 5, 0.2, Workload("pod", "ml", "stray", "main", "", "1001", "sweep.py", "", "pod", "stray")),
}
ON_CPU = Workload("user", user="bob", command="train.py")

Answer = dict[tuple[str, ...], float]
# Labels in alphabetical order, without the values that are empty.
ANSWERS: dict[str, Answer] = {
    "How busy is each GPU?": {(uuid,): busy for uuid, (busy, _) in DEVICES.items()},
    "Which namespace wastes the most?": {("ml",): 0.1 + 1, ("web",): 0.55 + 0.8},
    "Which user wastes the most?": {
        ("1000",): 0.1 + 0.55 / 2,
        ("1001",): 1 + 0.8,
        ("1002",): 0.55 / 2,
        ("ann",): 0.5,
    },
    "How many GPU seconds did each job use?": {
        ("77", "slurm"): 1800,
        ("fit", "job", "ml"): 3240,
        ("a", "deployment", "web"): 1080,
        ("b", "deployment", "web"): 360,
        ("stray", "pod", "ml"): 720,
    },
    "Which job wastes the most?": {
        ("77", "slurm"): 0.5,
        ("fit", "job", "ml"): 1.1,
        ("a", "deployment", "web"): 0.7,
        ("b", "deployment", "web"): 0.9,
        ("stray", "pod", "ml"): 0.8,
    },
    "Which allocated GPUs are idle?": {("GPU-1", "ml", "trainer-1"): 0, ("GPU-6",): 0},
    "How many GPU hours did each user allocate and never open?": {("eve",): 1},
    "Which process holds the memory of an idle GPU?": {
        ("101", "p1", "GPU-1", "ipykernel", "trainer-1", "1001"): 30 * GIB
    },
    "How is a time-sliced GPU shared?": {("GPU-2", "web", "serve-a"): 2 / 3, ("GPU-2", "web", "serve-b"): 2 / 9},
    "Who uses a GPU that is allocated to others?": {("GPU-5", "ml", "stray"): 5 * GIB},
    "How many GPUs are free?": {(): 1},
    "Which trainings do not use a GPU at all?": {("p9", "cpu", "train.py", "bob"): 1},
    "How much of the busy time has no owner?": {(): 0.05 / 2.05},
}


def samples() -> Iterator[tuple[str, dict[str, str], float, float]]:
    """Yield name, labels, first value, and increase per second."""
    for uuid, (busy, holders) in DEVICES.items():
        yield "gpu_busy_seconds_total", {"uuid": uuid, "engine": "gpu"}, 1000, busy
        yield "gpu_busy_seconds_total", {"uuid": uuid, "engine": "memory"}, 1000, 0.7
        yield "gpu_observed_seconds_total", {"uuid": uuid, "engine": "gpu"}, 9000, 1
        yield "gpu_unaccounted_busy_seconds_total", {"uuid": uuid}, 1, UNACCOUNTED.get(uuid, 0)
        state = ("unallocated", "allocated", "shared")[len(holders)]
        for name in ("allocated", "shared", "unallocated"):
            yield "gpu_allocation_state", {"uuid": uuid, "state": name}, name == state, 0
        for holder in holders:
            yield "gpu_allocation_info", {"uuid": uuid, **workload(holder)}, 1, 0
    for number, (process, (uuid, memory, busy, who)) in enumerate(PROCESSES.items()):
        pid = str(100 + number)
        yield "gpu_process_memory_used_bytes", {"process": process, "uuid": uuid}, memory * GIB, 0
        yield "gpu_process_busy_seconds_total", {"process": process, "uuid": uuid}, 5, busy
        yield "gpu_process_info", {"process": process, "pid": pid, "kind": "compute", **workload(who)}, 1, 0
        yield "gpu_process_host_info", {"process": process, "torch_build": "cuda", **workload(who)}, 1, 0
    # The same process a second time, with another pid in its container, because overlapping info must not break a join.
    extra = {"process": "p0", "pid": "100", "container_pid": "7", "kind": "compute", **workload(PROCESSES["p0"][3])}
    yield "gpu_process_info", extra, 1, 0
    yield "gpu_process_host_info", {"process": "p9", "torch_build": "cpu", **workload(ON_CPU)}, 1, 0


def openmetrics(end: int) -> str:
    """Return the hour before `end` as OpenMetrics; names and labels are those of the catalogue."""
    by_name: dict[str, list[tuple[dict[str, str], float, float]]] = {}
    for name, labels, first, rise in samples():
        assert labels.keys() <= set(ROWS[name].labels), name
        by_name.setdefault(name, []).append((labels, first, rise))
    lines = []
    for name, series in by_name.items():
        lines.append(f"# TYPE {name.removesuffix('_total')} {ROWS[name].kind}")
        for labels, first, rise in series:
            text = ",".join(f'{key}="{value}"' for key, value in labels.items() if value)
            lines += [
                f'{name}{{{text},instance="n"}} {first + rise * second} {end - SECONDS + second}'
                for second in range(0, SECONDS + 1, STEP)
            ]
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("queries")
    (folder / "data.txt").write_text(openmetrics(int(time.time())))
    command = [
        need("promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(folder / "data.txt"),
        str(folder / "tsdb"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    with prometheus(folder) as running:
        yield running


def test_every_query_has_a_known_answer() -> None:
    assert QUERIES.keys() == ANSWERS.keys()
    assert len(QUERIES) >= 10


@pytest.mark.parametrize("question", ANSWERS)
def test_query(server: Prometheus, question: str) -> None:
    found: Answer = {
        tuple(value for _, value in sorted(result["metric"].items())): float(result["value"][1])
        for result in server.query(QUERIES[question])
    }

    assert found == pytest.approx(ANSWERS[question], rel=0.01, abs=0.002)
