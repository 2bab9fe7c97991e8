"""`gpugauge track` follows drawn trainings until their end, and writes into MLflow and TensorBoard."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from tests.needs import need_module

from gpugauge.cli import track
from gpugauge.cli.main import main
from gpugauge.exposition.render import Exposition, Only
from gpugauge.exposition.trainings import Trainings
from gpugauge.report import kept
from gpugauge.snapshot import Section, Snapshot
from qa.worlds.test_kept import STEP, WATTS, Plan, snapshot

NOW = 1_790_000_000
SHARES = {"data_loading": 0.25, "unknown": 0.05}
EXPECTED = {"load": 0.7, "lost/data_loading": 0.25, "lost/unknown": 0.05, "power_watts": 2 * WATTS}


def followed(monkeypatch: pytest.MonkeyPatch, *trackers: str) -> None:
    """Follow job 7, two processes of a minute, beside another job."""
    plans = [Plan(name * 12, "7", NOW - 100, NOW - 40, f"GPU-{name}", SHARES) for name in "ab"]
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
    arguments = ["--job", "7", "--url", "http://node", *trackers]

    done = CliRunner().invoke(main, ["track", *arguments, "--interval", "10s"])

    assert (done.exit_code, done.output) == (0, "")


class Mlflow:
    """A double of MLflow with one run."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.text = ""

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        assert run == "r"
        for name, value, milliseconds, step in metrics:
            assert NOW - 110 < milliseconds / 1000 < NOW
            self.points[name].append((value, step))

    def log_text(self, run: str, text: str, name: str) -> None:
        assert (run, name) == ("r", "p/report.txt")
        self.text = text


def test_each_time_has_the_means_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: made))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=lambda *values: values))
    followed(monkeypatch, "--mlflow", "r", "--prefix", "p/")

    steps = [round(seconds / STEP) for seconds in (10, 20, 30, 40, 50)]
    assert made.points.pop("p/memory_gib")
    assert made.points.keys() == {f"p/{name}" for name in EXPECTED}
    for name, value in EXPECTED.items():
        assert [point for point, _ in made.points[f"p/{name}"]] == pytest.approx([value] * 5)
        assert [step for _, step in made.points[f"p/{name}"]] == steps
    assert "Slurm job 7" in made.text
    assert "of 2.00 GPU min held" in made.text


@pytest.mark.everything
def test_mlflow_and_tensorboard_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "tensorboard"):
        need_module(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = importlib.import_module("mlflow").MlflowClient()
    run = client.create_run(client.create_experiment("e")).info.run_id
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    followed(monkeypatch, "--mlflow", run, "--tensorboard", str(tmp_path / "run"))

    for name, value in EXPECTED.items():
        points = client.get_metric_history(run, f"gpugauge/{name}")
        assert [point.value for point in points] == pytest.approx([value] * len(points))
        assert len(points) == 5
    assert [point.step for point in points] == sorted(point.step for point in points)
    assert points[-1].step == 50 / STEP
    report = Path(client.download_artifacts(run, "gpugauge/report.txt", str(tmp_path))).read_text()
    assert "Slurm job 7" in report
    (file,) = (tmp_path / "run").glob("*.gpugauge")
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    for name, value in EXPECTED.items():
        assert {round(each.value, 4) for each in events.Scalars(f"gpugauge/{name}")} == {value}
    (text,) = events.Tensors("gpugauge/report")
    assert "Slurm job 7" in text.tensor_proto.string_val[0].decode()
