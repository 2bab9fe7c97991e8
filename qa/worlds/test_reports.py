"""Reports on drawn jobs: the sums are those of the plans, and what no scrape can have seen is stated."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.drawn import draws, seeds
from tests.e2e.backfill import labelled, written
from tests.e2e.programs import prometheus

from gpugauge.cli.main import main
from gpugauge.report import build, jobs, page, render
from gpugauge.report.model import Report
from gpugauge.report.source import Prometheus, Range
from qa.worlds.reports import Double, World, drawn, labels_of

NOW = 1_790_000_000
EDGE = 1e-3  # seconds


def check(world: World, report: Report) -> None:
    """Compare a report with the truth: it lacks at most what no scrape can have seen."""
    assert report.gpu_hours is not None
    held = 3600 * report.gpu_hours.held
    assert world.held - world.unseen - EDGE <= held <= world.held + EDGE, (held, world.held, world.unseen)
    for cause, true in world.lost.items():
        found = 3600 * report.gpu_hours.lost.get(cause, 0.0)
        assert true - world.unseen - EDGE <= found <= true + EDGE, (cause, found, true, world.unseen)
    assert report.gpu_hours.held == pytest.approx(report.gpu_hours.used + report.gpu_hours.all_lost)
    assert report.gpu_hours.used >= -EDGE
    assert 3600 * sum(report.products.values()) == pytest.approx(held)
    uncounted = sum(use.uncounted_seconds for use in report.processes)
    assert held + uncounted == pytest.approx(world.held, abs=world.interval * (len(report.processes) + world.restarts))
    assert any("in no counter" in line for line in report.unknown) == (uncounted > 0)
    assert report.end_words == ["finished"] or world.interval > 30 or world.unseen
    assert report.curves is not None
    shown = sum(report.curves.held_gpus) * report.curves.interval_seconds
    assert shown == pytest.approx(held, rel=1e-6)


def render_all(report: Report) -> None:
    found = render.blocks(report)
    for text in (render.as_text(found), render.as_markdown(found), page.of_job(report, found, NOW)):
        assert report.title in text.replace("\\", "")


@seeds(draws(1, 300))
def test_sums_are_those_of_the_plans(seed: int) -> None:
    world = drawn(seed, NOW)
    double: Prometheus = Double(world.series)  # type: ignore[assignment]  # the methods that a report uses

    job, found = jobs.of_job(double, world.job, Range(NOW - 7 * 86400, NOW))
    report = build.report(job, found, NOW)

    check(world, report)
    assert report.energy_joules is None or report.energy_joules <= world.joules * 1.001
    render_all(report)


@pytest.mark.e2e
@pytest.mark.everything
@pytest.mark.timeout(600)
def test_sums_from_a_real_prometheus(tmp_path: Path) -> None:
    now = int(time.time())
    worlds = [drawn(seed, now, 1800) for seed in draws(3, 12)]
    written(
        tmp_path,
        (
            (labelled(series.name, labels_of(series)), value, int(second))
            for world in worlds
            for series in world.series
            for second, value in series.points
        ),
    )
    with prometheus(tmp_path) as server:
        for world in worlds:
            done = CliRunner().invoke(main, ["report", world.job, "--prometheus.url", server.url, "--format", "json"])
            assert done.exit_code == 0, done.output
            of_server = json.loads(done.output)["gpu_hours"]
            job, found = jobs.of_job(Double(world.series), world.job, Range(now - 7 * 86400, now))  # type: ignore[arg-type]  # as above
            own = build.report(job, found, now).gpu_hours
            assert own is not None
            assert of_server["held"] == pytest.approx(own.held)
            assert of_server["lost"] == pytest.approx(dict(own.lost))
            for form in ("text", "markdown", "html"):
                arguments = ["report", f"slurm:{world.job}", "--prometheus.url", server.url, "--format", form]
                assert CliRunner().invoke(main, arguments).exit_code == 0
        done = CliRunner().invoke(main, ["report", "40000", "--prometheus.url", server.url])
        assert done.exit_code == 1
        assert "no process of a job 40000" in done.output
