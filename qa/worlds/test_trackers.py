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
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tests.drawn import OF_TESTS, draws, seeds
from tests.e2e.programs import daemon, wait_for
from tests.needs import need_module

from gpugauge.cli import track
from gpugauge.cli.main import main
from gpugauge.exposition.render import Exposition, Only
from gpugauge.exposition.trainings import Trainings
from gpugauge.report import build, jobs, jobstats, kept
from gpugauge.report.source import Range
from gpugauge.snapshot import Section, Snapshot
from qa.worlds.reports import Double, drawn
from qa.worlds.test_kept import STEP, WATTS, Plan, snapshot

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


def test_track_writes_what_mlflow_and_tensorboard_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "tensorboard"):
        need_module(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = importlib.import_module("mlflow").MlflowClient()
    run = client.create_run(client.create_experiment("e")).info.run_id
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    share = {"data_loading": 0.25, "unknown": 0.05}
    plans = [Plan(name * 12, "7", NOW - 100, NOW - 40, f"GPU-{name}", share) for name in "ab"]
    other = Plan("c" * 12, "8", NOW - 500, NOW + 500, "GPU-c", {"unknown": 0.9})
    clock, trainings = SimpleNamespace(now=float(NOW - 110)), Trainings("node")

    def answer(url: str, **_: object) -> bytes:
        made = snapshot([*plans, other], NOW - 600, int(clock.now))
        if url.endswith("/api/v1/trainings"):
            return trainings.body(made)
        trainings.feed(made)
        exposition = Exposition(1e12)
        # Those of the plans have no buckets.
        shown = (
            family for section in made.sections for family in section.families if family.metric.kind != "histogram"
        )
        exposition.publish(Snapshot(made.timestamp, made.monotonic, (Section("all", tuple(shown)),)))
        assert url == "http://node/metrics?job=7"
        return exposition.respond(None, None, 0.0, only=Only(jobs=frozenset({"7"}))).body

    def sleep(seconds: float) -> None:
        clock.now += seconds
        assert clock.now < NOW + 100

    for module in (track, kept):
        monkeypatch.setattr(module, "request", answer)
    monkeypatch.setattr(track, "time", SimpleNamespace(time=lambda: clock.now, sleep=sleep))
    arguments = ["--job", "7", "--url", "http://node", "--mlflow", run, "--tensorboard", str(tmp_path / "run")]

    done = CliRunner().invoke(main, ["track", *arguments, "--interval", "10s"])

    assert (done.exit_code, done.output) == (0, "")
    expected = {"load": 0.7, "lost/data_loading": 0.25, "lost/unknown": 0.05, "power_watts": 2 * WATTS}
    for name, value in expected.items():
        points = client.get_metric_history(run, f"gpugauge/{name}")
        assert [point.value for point in points] == pytest.approx([value] * len(points))
        assert len(points) == 5
    assert [point.step for point in points] == sorted(point.step for point in points)
    assert points[-1].step == 50 / STEP
    report = Path(client.download_artifacts(run, "gpugauge/report.txt", str(tmp_path))).read_text()
    assert "Slurm job 7" in report
    assert "of 2.00 GPU min held" in report
    (file,) = (tmp_path / "run").glob("*.gpugauge")
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    for name, value in expected.items():
        assert {round(each.value, 4) for each in events.Scalars(f"gpugauge/{name}")} == {value}
    (text,) = events.Tensors("gpugauge/report")
    assert "Slurm job 7" in text.tensor_proto.string_val[0].decode()
