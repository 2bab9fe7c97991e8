"""The programs of others that read what gpugauge writes: reportseff the comment of a job, W&B, MLflow and TensorBoard
its metrics.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import struct
import subprocess
import sys
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.drawn import OF_TESTS, draws, seeds
from tests.e2e.programs import daemon, wait_for
from tests.needs import need_module

from gpugauge.report import build, jobs, jobstats
from gpugauge.report.source import Range
from qa.worlds.reports import Double, drawn

pytestmark = [pytest.mark.e2e, pytest.mark.everything]
NOW = 1_790_000_000

SACCT = """#!{python}
import sys
if "--helpformat" in sys.argv:
    print("JobID JobIDRaw State AdminComment AllocCPUS Elapsed NNodes REQMEM TotalCPU")
else:
    names = [argument for argument in sys.argv if argument.startswith("--format=")][0].partition("=")[2].split(",")
    known = {{"JobID": "{job}", "JobIDRaw": "{job}", "State": "COMPLETED", "AdminComment": "{comment}"}}
    print("^|^".join(known.get(name, "") for name in names) + "^|^")
"""


@seeds(draws(1, 12))
def test_reportseff_reads_the_comment(seed: int, tmp_path: Path) -> None:
    need_module("reportseff")
    world = drawn(seed, NOW, 7200)
    job, found = jobs.of_job(Double(world.series), world.job, Range(NOW - 86400, NOW))  # type: ignore[arg-type]  # its methods
    comment = jobstats.comment(build.report(job, found, NOW), found)
    sacct = SACCT.format(python=sys.executable, job=world.job, comment=comment)
    for name, text in {"sacct": sacct, "scontrol": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    program = "import sys; from reportseff.console import main; sys.exit(main())"
    arguments = ["--no-color", "--parsable", "--format", "JobID,State,GPUEff,GPUMem", world.job]

    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=path, capture_output=True, text=True, check=True
    )

    nodes = json.loads(gzip.decompress(b64decode(comment.removeprefix("JS1:"))))["nodes"]
    busy = [sum(node["gpu_utilization"].values()) / len(node["gpu_utilization"]) for node in nodes.values()]
    shown = done.stdout.splitlines()[-1].split("|")
    assert shown[:2] == [world.job, "COMPLETED"], done.stdout + done.stderr
    assert float(shown[2].rstrip("%")) == pytest.approx(sum(busy) / len(busy), abs=0.2)
    assert 0 < float(shown[3].rstrip("%")) <= 100


RUN = """import sys, time, wandb
settings = wandb.Settings(
    x_stats_open_metrics_endpoints={"gpugauge": sys.argv[1] + "/metrics?job=501"},
    x_stats_open_metrics_filters=["gpugauge.gpu_power_watts", "gpugauge.gpu_process_memory_used_bytes"],
    x_stats_sampling_interval=1,
)
run = wandb.init(project="p", mode="offline", dir=sys.argv[2], settings=settings)
time.sleep(8)
run.finish()
"""


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log as LevelDB writes it, after W&B's header of seven bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # full, or last
            yield whole
            whole = b""


@pytest.mark.timeout(300)
def test_an_offline_run_of_wandb_has_the_series_of_its_job(tmp_path: Path) -> None:
    need_module("wandb")
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    environ = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    with daemon(tmp_path, "--simulate=bottlenecks") as running:
        wait_for(lambda: 'workload_job="501"' in running.metrics(), 60, "the job is known")
        wait_for(lambda: running.series("gpu_power_watts", "uuid"), 60, "the power is known")
        others = {uuid for (uuid,) in running.series("gpu_power_watts", "uuid")}
        (tmp_path / "run.py").write_text(RUN)
        command = [sys.executable, str(tmp_path / "run.py"), running.url, str(tmp_path)]
        subprocess.run(command, env=environ, check=True, timeout=200, capture_output=True)
        own = running.series("gpu_process_memory_used_bytes", "process", "uuid")
        job = {
            process for process, name in running.series("gpu_process_info", "process", "workload_job") if name == "501"
        }
    found = defaultdict[str, list[float]](list)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for data in records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        for item in record.stats.item if record.WhichOneof("record_type") == "stats" else ():
            if item.key.startswith("openmetrics.gpugauge."):
                found[item.key.removeprefix("openmetrics.gpugauge.").rpartition(".")[0]].append(float(item.value_json))

    gpus = {uuid for process, uuid in own if process in job}
    assert found.keys() == {"gpu_power_watts", "gpu_process_memory_used_bytes"}
    assert 0 < len(gpus) < len(others)
    assert set(found["gpu_process_memory_used_bytes"]) <= {
        value for (process, _), value in own.items() if process in job
    }
    assert len(found["gpu_power_watts"]) % len(gpus) == 0
