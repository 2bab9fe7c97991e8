"""Reports on drawn jobs: the sums are those of the plans, and what no scrape can have seen is stated."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from tests.drawn import EVERYTHING, cases, draws, seeds
from tests.e2e.backfill import labelled, written
from tests.e2e.programs import prometheus, prometheus3, wait_for
from tests.needs import need

from gpugauge.cli.main import main
from gpugauge.cli.report import written as in_form
from gpugauge.exposition.trainings import COUNTERS, END, HELD, LOST, SECONDS
from gpugauge.report import build, compare, jobs, jobstats, page, render, source, top
from gpugauge.report.counters import VERDICT, Facts
from gpugauge.report.model import JobId, Report
from gpugauge.report.prices import Prices
from gpugauge.report.source import Prometheus, Range, Series
from gpugauge.verdict.causes import CAUSES
from qa.worlds.reports import BUSY, Double, World, drawn, labels_of

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
    assert held + uncounted == pytest.approx(
        world.held, abs=(world.interval + 10) * (len(report.processes) + world.restarts)
    )
    assert any("in no counter" in line for line in report.unknown) == (uncounted > 0)
    assert report.end_words == ["finished"] or world.interval > 30 or world.unseen
    assert report.curves is not None
    shown = sum(report.curves.held_gpus) * report.curves.interval_seconds
    assert shown == pytest.approx(held, rel=1e-6)
    # When a process ended whose exporter began again at the same time is not known.
    assert max(report.curves.held_gpus) <= world.ranks + EDGE or world.restarts, "no more GPUs than there are"


def render_all(report: Report) -> None:
    found = render.blocks(report)
    for text in (render.as_text(found), render.as_markdown(found), page.as_html(found, NOW, report.curves)):
        assert report.title in text.replace("\\", "")


@seeds(draws(3, 300))
def test_sums_are_those_of_the_plans(seed: int) -> None:
    world = drawn(seed, NOW, 30_000 if EVERYTHING else 1800)
    double: Prometheus = Double(world.series)  # type: ignore[assignment]  # the methods that a report uses

    job, found = jobs.of_job(double, world.job, Range(NOW - 7 * 86400, NOW))
    report = build.report(job, found, NOW)

    check(world, report)
    assert report.energy_joules is None or report.energy_joules <= world.joules * 1.001
    render_all(report)


def read_at_ticks(draw: random.Random, power: Callable[[float], float], length: int) -> list[Series]:
    """Return the series of a rank, which may restart, on one GPU with this power, of which a scrape has what
    the exporter read at its last tick.
    """
    interval, tick = draw.choice((1, 3, 5, 5, 7, 15, 30, 60)), draw.choice((1.0, 4.99, 5.0, 5.03, 10.0))
    late = draw.choice((0.0, 0.2, 0.9)) * tick
    ticks = [NOW - 600 + tick * n + late * draw.random() for n in range(int((length + 1200) / tick))]
    joules = [0.0]
    for before, after in pairwise(ticks):
        joules.append(
            joules[-1] + sum(power(before + (after - before) * (n + 0.5) / 8) for n in range(8)) * (after - before) / 8
        )
    lives: list[tuple[str, int, int]] = []
    begin = NOW
    while NOW + length - begin > 100:
        end = draw.choice((NOW + length, draw.randrange(begin + 100, NOW + length + 1)))
        lives.append((f"{len(lives):012x}", begin, end))
        begin = end + draw.randrange(3, 40)
    known: defaultdict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for n in range((length + 900) // interval):
        moment = NOW - 500 + interval * n + draw.random() * draw.choice((0, 0, 0.5))
        at = bisect_right(ticks, moment) - 1
        if draw.random() < 0.02:
            continue  # a scrape fails

        def put(value: float, moment: float = moment, **labels: str) -> None:
            known[tuple(sorted({"instance": "node-1", **labels}.items()))].append((moment, value))

        put(1e6 + joules[at], __name__="gpu_energy_joules_total", uuid="GPU-1")
        put(80 << 30, __name__="gpu_memory_total_bytes", uuid="GPU-1")
        for process, begin, end in lives:
            spent = min(ticks[at], end) - begin
            if spent > 0 and ticks[at] < end + 60:
                put(spent, __name__="training_seconds_total", process=process, state="training")
                put(spent, __name__=HELD, process=process)
                put(0.6 * spent, __name__="training_lost_seconds_total", process=process, cause="transfer")
                put(1, __name__="torch_process_info", process=process, workload_job_kind="slurm", workload_job="7")
                if ticks[at] < end:
                    put(30 << 30, __name__="gpu_process_memory_used_bytes", process=process, uuid="GPU-1")
    return [Series(dict(labels), points) for labels, points in known.items()]


@seeds(draws(20, 400))
def test_curves_show_what_was_counted_and_not_when_it_was_read(seed: int) -> None:
    draw = random.Random(seed)
    length, watts = draw.choice((300, 1200, 3600, 9000)), draw.randrange(100, 700)
    steady = draw.random() < 0.6
    high = [draw.random() < 0.5 for _ in range(8)]

    def power(moment: float) -> float:
        at = int(8 * (moment - NOW) / length)
        return watts / (1 if steady or not 0 <= at < 8 or high[at] else 4)

    double: Prometheus = Double(read_at_ticks(draw, power, length))  # type: ignore[assignment]  # as above
    job, found = jobs.of_job(double, "7", Range(NOW - 7 * 86400, NOW + length + 400))
    report = build.report(job, found, NOW + 86400)
    curves = report.curves
    assert curves is not None
    shown, edge = [value / watts for value in curves.watts if value is not None], 20 / length
    assert max(shown) <= 1 + edge, "no more than the GPU used at any time"
    assert min(shown) >= (1 if steady else 0.25) - edge
    if not steady and length > 24 * curves.interval_seconds:
        assert max(shown) > 0.75 or not any(high)
        assert min(shown) < 0.4 or all(high)
    assert max(curves.held_gpus) <= 1.05
    if len(curves.watts) > 1:
        html = page.as_html([*render.blocks(report), render.Block("What could not be known", ["x"])], NOW, curves)
        assert "at most 30 of 80 GiB" in html
        assert "v-36.5h10v36.5Z" in html, "30 of 80 parts of the chart's height, less a line"
        assert "waits for copies to the GPU</span>" in html
        assert html.index("What could not be known") < html.index("Over time")
    for held, lost in zip(curves.held_gpus, curves.lost_gpus["transfer"], strict=True):
        assert lost == pytest.approx(0.6 * held, abs=1e-3)


class Answering(Prometheus):
    """A server that answers an instant query by its text."""

    def instant(self, query: str, at: float) -> list[Series]:
        self.asked = query
        return [Series({"process": "a"}, [(at, 1.0)])]


def test_what_an_exporter_had_in_its_last_scrape_is_asked_of_the_server() -> None:
    """Prometheus marks what is no longer there, however late the scrapes are."""
    server = Answering("", 'cluster="c"')
    assert server.present(SECONDS, ["a", "b"], NOW) == {"a"}
    assert server.asked == '{__name__=~"training_seconds_total",process=~"a|b",cluster="c"}'

    world = drawn(3, NOW)
    double: Any = Double(world.series)
    found = jobs.read(double, jobs.owners(double, Range(0, NOW)), Range(0, NOW), COUNTERS, ())
    (job,) = {owner.job for owner in found.owners.values()}
    facts = {process: facts for process, facts in found.facts.items() if not facts.info(END)}
    late = replace(found, facts=facts, present=frozenset(facts))
    assert not build.report(job, replace(late, present=frozenset()), NOW).running
    assert build.report(job, late, NOW).running


class Windowed(Prometheus):
    """A server with one counter, and with too many samples to send them all. Ranges are those of Prometheus 2 or 3."""

    def __init__(self, series: list[Series], *, left_open: bool) -> None:
        super().__init__("")
        self.held, self.left_open = series, left_open

    def instant(self, _query: str, at: float) -> list[Series]:
        return [Series({}, [(at, 1e9)])]

    def over_time(self, query: str, span: Range, step: int) -> list[Series]:
        functions: dict[str, Callable[[list[float]], float]] = {
            "last": lambda values: values[-1],
            "max": max,
            "min": min,
        }
        of = functions[query.partition("_")[0]]
        times = [span.end - step * n for n in range(math.ceil(span.seconds / step), -1, -1)]
        found = []
        for each in self.held:
            windows = {t: [v for s, v in each.points if t - step + self.left_open <= s <= t] for t in times}
            found.append(Series(each.labels, [(t, of(values)) for t, values in windows.items() if values]))
        return [series for series in found if series.points]


@cases("left_open", (False, True))
def test_a_restart_between_two_windows_is_seen(left_open: bool) -> None:
    """Also where the counter has more in the next window than in the one before."""
    before, after = [(60, 23.0), (120, 83.0)], [(60 * n, 60.0 * n - 140) for n in range(3, 30)]
    labels = [{"__name__": name, "process": "p"} for name in VERDICT[::2]]
    for begin in range(0, 120, 11):
        first, second = ([(float(NOW + begin + t), v) for t, v in points] for points in (before, after))
        same = [Series(each, first + second) for each in labels]
        moved = [Series(each | {"pod": str(n)}, part) for each in labels for n, part in enumerate((first, second))]
        for series in (same, moved):
            windowed = Windowed(series, left_open=left_open)
            found = windowed.counters(VERDICT[::2], "process", ["p"], Range(NOW, NOW + 2880))
            assert len(found[0].points) < 27
            sums = [Facts(each, NOW).sum(HELD) or 0.0 for each in (series, found)]
            assert sums[0] == 83 + 60 * 29 - 140
            # A restart within a window may hide what came before it there, of at most half of it.
            assert sums[0] - 60 <= sums[1] <= sums[0], (begin, series)


@pytest.mark.e2e
@pytest.mark.everything
@pytest.mark.timeout(1800)
def test_sums_from_a_real_prometheus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for number in draws(1, 2):
        program = prometheus3("prometheus") if number else need("prometheus")
        with prometheus(tmp_path, program=program) as server, monkeypatch.context() as patch:
            check_of_server(server.url, worlds, now, patch)


def check_of_server(url: str, worlds: list[World], now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs/report.schema.json").read_text())
    for number, world in enumerate(worlds):
        if number:  # as if there were too many samples to read them all
            monkeypatch.setattr(source, "_MAX_SAMPLES", 1)
        done = CliRunner().invoke(main, ["report", world.job, "--prometheus.url", url, "--format", "json"])
        assert done.exit_code == 0, done.output
        jsonschema.validate(json.loads(done.output), schema)
        of_server = json.loads(done.output)["gpu_hours"]
        job, found = jobs.of_job(Double(world.series), world.job, Range(now - 7 * 86400, now))  # type: ignore[arg-type]  # as above
        own = build.report(job, found, now).gpu_hours
        assert own is not None
        again = 1e-9 + 60 * world.restarts / 3600  # two restarts in one window hide what is between them
        assert of_server["held"] == pytest.approx(own.held, abs=again if number else None)
        assert of_server["lost"] == pytest.approx(dict(own.lost), abs=again if number else None)
        for form in ("text", "markdown", "html"):
            arguments = ["report", f"slurm:{world.job}", "--prometheus.url", url, "--format", form]
            assert CliRunner().invoke(main, arguments).exit_code == 0
    for name in ("40000", 'a"b', "a\\", "(", "é x"):
        done = CliRunner().invoke(main, ["report", name, "--prometheus.url", url])
        assert done.exit_code == 1
        assert f"no job is called {name}" in done.output
    done = CliRunner().invoke(main, ["report", "4", "--prometheus.url", url, "--match", "cluster"])
    assert "write label matchers" in done.output


def test_epilog_writes_the_comment_of_each_kind_of_job(tmp_path: Path) -> None:
    """The accounting has arrays and heterogeneous jobs under other names than the series. Slurm passes on variables of
    the job alone, and kills the process group of a script that has ended.
    """
    script = Path(__file__).parents[2] / "deploy/slurm/epilog-slurmctld.sh"
    fails = '[ "$SLURM_JOB_ID" != 13 ] || { echo no server >&2; exit 1; }; [ "$PROMETHEUS_URL" = http://p ] || exit 1; '
    refuses = '[ "$5" != jobid=14 ] || { echo refused; exit 1; }; '
    called = 'echo "$@" >>%s.log; echo JS1:abc'
    doubles = {"gpugauge": fails + called, "sacctmgr": refuses + called, "logger": "exec cat >>%s.log"}
    for name, text in doubles.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text % (tmp_path / name)}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.env").write_text(f"PATH={tmp_path}:$PATH\nPROMETHEUS_URL=http://p\n")

    def lines(of: str) -> list[str]:
        path = tmp_path / f"{of}.log"
        return path.read_text().splitlines() if path.exists() else []

    def ended(variables: dict[str, str], delay: str = "0.2") -> None:
        environment = {"GPUGAUGE_SLURM_ENV": f"{tmp_path}/slurm.env", "GPUGAUGE_EPILOG_DELAY": delay, **variables}
        process = subprocess.Popen([script], env=environment, start_new_session=True)
        assert process.wait(timeout=10) == 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    start = str(int(time.time()) - 100)
    cases: list[tuple[dict[str, str], str, str]] = [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_START_TIME": start}, "7", "7"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3"}, "9", "8_3"),
        ({"SLURM_JOB_ID": "12", "SLURM_HET_JOB_ID": "11"}, "11", "12"),
    ]
    for number, (variables, job, record) in enumerate(cases):
        ended(variables)
        wait_for(partial(lambda at: len(lines("sacctmgr")) > at, number), 5, record)
        asked = lines("gpugauge")[number].split()
        assert asked[:4] == ["report", "--slurm", job, "--since"]
        assert number or 100 <= int(asked[4].removesuffix("s")) < 200
        assert lines("sacctmgr")[number] == (f"-i update job where jobid={record} set AdminComment=JS1:abc")
    assert lines("logger") == []
    for job, why in (("13", "no server"), ("14", "sacctmgr: refused")):
        ended({"SLURM_JOB_ID": job}, "0")
        wait_for(partial(lambda wanted: wanted in lines("logger"), f"job {job}: {why}"), 5, why)
    assert len(lines("sacctmgr")) == len(cases)


def test_the_cronjob_posts_the_table(tmp_path: Path) -> None:
    manifest = Path(__file__).parents[2] / "deploy/kubernetes/report/cronjob.yaml"
    (container,) = yaml.safe_load(manifest.read_text())["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (tmp_path / "gpugauge").write_text('#!/bin/sh\necho "$@ é"\n')
    (tmp_path / "gpugauge").chmod(0o755)
    posted: list[tuple[str, dict[str, str]]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.handle_request).start()
        environ = {"PATH": f"{tmp_path}:/bin", "WEBHOOK_URL": f"http://127.0.0.1:{server.server_port}/abc"}
        subprocess.run([sys.executable, *container["command"][1:], *container["args"]], env=environ, check=True)
    ((path, message),) = posted
    assert path == "/abc"
    # What it asks for is a command that exists.
    words, end = message["text"].split()[:-1], message["text"].split()[-1]
    assert end == "é"
    done = CliRunner().invoke(main, [*words, "--prometheus.url", "http://127.0.0.1:1"])
    assert "Connection refused" in done.output


# By the change that is planted: the settings before and after, and the seconds that a step takes longer or shorter.
PLANTED: dict[str, tuple[str, str, str, str, float]] = {
    "loader workers": ("torch_loader_info", "workers", "8", "1", 0.3),
    "autocast": ("torch_settings_info", "autocast", "yes", "no", 0.25),
    "matmul dtype": ("torch_build_info", "matmul_dtype", "bfloat16", "float32", 0.2),
    "sharding": ("torch_parallel_info", "sharding", "", "full_shard", 0.15),
    "": ("torch_process_info", "python", "3.12.1", "3.12.2", 0.0),
}
# A setting, with a value that only one of two runs reports.
NOT_REPORTED = (
    ("torch_loader_info", "batch_size", "32"),
    ("torch_loader_info", "prefetch", "2"),
    ("torch_settings_info", "deterministic", "yes"),
    ("torch_build_info", "cudnn", "91002"),
)
OF_PART = {"loader workers": "data", "autocast": "rest", "matmul dtype": "rest", "sharding": "peers", "": "rest"}


def run_of(job: str, settings: dict[str, dict[str, str]], parts: dict[str, float], steps: int) -> list[Series]:
    """Return the series of a job of one rank, scraped each minute, whose steps take these seconds by part."""
    step = sum(parts.values())
    seconds = [60 * n for n in range(1, int(steps * step / 60) + 1)]
    infos = {
        "torch_process_info": {"workload_job_kind": "slurm", "workload_job": job, "world_size": "2", "rank": "0"},
        **{
            name: {} for name in ("torch_loader_info", "torch_settings_info", "torch_build_info", "torch_parallel_info")
        },
    }
    own = {"process": f"{int(job):012x}", "instance": "node-1:10478"}
    of_time: list[tuple[str, dict[str, str], float]] = [
        ("training_seconds_total", {"state": "training"}, 1.0),
        ("torch_step_duration_seconds_sum", {}, 1.0),
        ("torch_step_duration_seconds_count", {}, 1 / step),
        ("torch_steps_total", {}, 1 / step),
        ("torch_phase_seconds_total", {"phase": "training"}, 1 - parts["data"] / step),
        ("torch_phase_seconds_total", {"phase": "loading"}, parts["data"] / step),
        ("torch_data_wait_seconds_total", {"phase": "training"}, parts["data"] / step),
        ("torch_local_work_seconds_total", {}, 1 - parts["peers"] / step),
    ]
    begin = NOW - 86400
    return [
        *(
            Series({"__name__": name, **own, **labels}, [(begin + t, t * rate) for t in seconds])
            for name, labels, rate in of_time
        ),
        *(
            Series({"__name__": name, **own, **labels, **settings.get(name, {})}, [(begin + t, 1.0) for t in seconds])
            for name, labels in infos.items()
        ),
    ]


@seeds(draws(1, 40))
def test_a_planted_change_is_named(seed: int) -> None:
    for name in PLANTED:
        check_named(random.Random(f"{seed}{name}"), name)


def check_named(draw: random.Random, name: str) -> None:
    metric, label, before, after, more = PLANTED[name]
    parts = {"data": draw.uniform(0.0, 0.1), "peers": draw.uniform(0.0, 0.1), "rest": draw.uniform(0.15, 0.4)}
    changed = {part: seconds * draw.uniform(0.98, 1.02) for part, seconds in parts.items()}
    changed[OF_PART[name]] += more
    other = (
        {"torch_settings_info": {"cudnn_benchmark": draw.choice(("yes", "no"))}}
        if metric != "torch_settings_info"
        else {}
    )
    runs = [
        run_of("1", {metric: {label: before}}, parts, draw.randrange(1000, 5000)),
        run_of("2", {metric: {label: after}, **other}, changed, draw.randrange(1000, 5000)),
    ]
    # What one of them has not reported is no change, whatever the other has.
    unknown = draw.choice([each for each in NOT_REPORTED if each[0] != metric])
    at = draw.randrange(2)
    runs[at] = [
        Series({**s.labels, unknown[1]: unknown[2]}, s.points) if s.labels["__name__"] == unknown[0] else s
        for s in runs[at]
    ]
    if draw.random() < 0.5:
        runs.reverse()
    double: Prometheus = Double([series for run in runs for series in run])  # type: ignore[assignment]  # as above
    reports = []
    for job in ("1", "2") if runs[0][0].labels["process"].endswith("1") else ("2", "1"):
        identity, found = jobs.of_job(double, job, Range(NOW - 7 * 86400, NOW))
        reports.append(build.report(identity, found, NOW))
    both = compare.compare(*reports)
    answer = " ".join(both.answer)

    assert unknown[1].replace("_", " ") not in f"{answer} {[*both.settings]}"
    least = replace(reports[1], steps=draw.choice([4, 0.99 * 10 / (reports[1].step_seconds or 1.0)]))
    short = " ".join(compare.compare(*(reports[0], least) if draw.random() < 0.5 else (least, reports[0])).answer)
    assert short.startswith("Too short to compare: "), short
    assert "explains" not in short
    if not name:
        assert "No change" in answer, answer
        return
    assert answer.partition("The change that explains it: ")[2].startswith(name), answer
    assert render.as_text(compare.blocks(both))


@seeds(draws(3, 60))
def test_runs_with_other_batches_are_compared_by_their_samples(seed: int) -> None:
    """The steps of B have more samples, and each sample takes a drawn part of its time in A."""
    draw = random.Random(seed)
    larger, faster = draw.choice([2, 8]), draw.choice([0.5, 1.0, 1.3, 4.0])
    parts = {"data": draw.uniform(0.1, 0.2), "peers": 0.0, "rest": 0.01}
    longer = {part: seconds * larger / faster for part, seconds in parts.items()}
    made = []
    for job, batch, of in (("1", 16, parts), ("2", 16 * larger, longer)):
        run = run_of(job, {"torch_loader_info": {"batch_size": str(batch), "workers": "2"}}, of, 2000)
        (steps,) = (each for each in run if each.labels["__name__"] == "torch_steps_total")
        named = {**steps.labels, "__name__": "torch_samples_total"}
        double: Prometheus = Double([*run, Series(named, [(at, batch * n) for at, n in steps.points])])  # type: ignore[assignment]  # as above
        made.append(build.report(*jobs.of_job(double, job, Range(NOW - 7 * 86400, NOW)), NOW))
    both = compare.compare(*made)
    answer = " ".join(both.answer)

    a, b = both.samples_per_second
    assert a
    assert b
    assert b / a == pytest.approx(faster, rel=0.05)
    assert f"a step has {larger} times as many" in answer
    if faster == 1.0:
        assert answer.startswith("No change: B makes ")
        return
    words = f"B is {faster:g} times as fast: " if faster > 1 else f"B needs {1 / faster:g} times as long: "
    assert answer.startswith(words), answer
    # A larger batch makes no sample slower.
    assert ("loader batch size" in answer) == (faster > 1)


def test_workers_explain_only_what_they_can() -> None:
    slow, fast = {"data": 0.3, "peers": 0.0, "rest": 0.02}, {"data": 0.01, "peers": 0.0, "rest": 0.02}
    for workers, named in ((("2", "0"), False), (("0", "2"), True)):
        reports = []
        for job, number, parts in (("1", workers[0], slow), ("2", workers[1], fast)):
            double: Prometheus = Double(run_of(job, {"torch_loader_info": {"workers": number}}, parts, 2000))  # type: ignore[assignment]  # as above
            reports.append(build.report(*jobs.of_job(double, job, Range(NOW - 7 * 86400, NOW)), NOW))
        assert ("loader workers" in " ".join(compare.compare(*reports).answer)) == named


def one_after_the_other(first: list[Series], second: list[Series], gap: float = 300) -> jobs.Found:
    after = first[0].points[-1][0] - second[0].points[0][0] + gap
    second = [
        Series({**each.labels, "process": "8"}, [(at + after, value) for at, value in each.points]) for each in second
    ]
    double: Prometheus = Double([*first, *second])  # type: ignore[assignment]  # as above
    return jobs.of_job(double, "7", Range(NOW - 7 * 86400, NOW))[1]


def test_runs_of_one_job_are_compared() -> None:
    parts, slower = {"data": 0.01, "peers": 0.0, "rest": 0.2}, {"data": 0.3, "peers": 0.0, "rest": 0.2}
    settings = [
        {"torch_loader_info": {"workers": n}, "torch_process_info": {"command": name, "rank": ""}}
        for n, name in (("8", "a.py"), ("1", "b.py"))
    ]
    found = one_after_the_other(run_of("7", settings[0], parts, 3000), run_of("7", settings[1], slower, 1000))
    job = JobId("slurm", "", "7")

    reports = [build.report(job, build.run_of(found, number), NOW) for number in (-2, -1)]
    answer = " ".join(compare.compare(*reports).answer)

    assert [report.steps for report in reports] == pytest.approx([3000, 1000], rel=0.05)
    assert "workers 8 → 1" in answer
    assert "different programs (a.py and b.py)" in answer
    assert build.run_of(found, -3).facts.keys() == build.run_of(found, -2).facts.keys(), "the first one"


def test_runs_that_overlap_are_listed_and_not_compared() -> None:
    parts = {"data": 0.1, "peers": 0.0, "rest": 0.2}

    def found(gap: float, world_size: str) -> Report:
        info = {"torch_process_info": {"command": "a.py", "rank": "", "world_size": world_size}}
        first, second = (run_of("7", info, parts, steps) for steps in (3000, 4000))
        return build.report(JobId("slurm", "", "7"), one_after_the_other(first, second, gap), NOW)

    both = found(-600, "")
    text = render.as_text(render.blocks(both), 200)
    assert "2 of its runs overlapped" in text
    assert text.count("  node-1:10478  from 20") == 2
    with pytest.raises(jobs.ReportError, match="2 runs of Slurm job 7 overlapped"):
        compare.compare(both, both)
    for gap, world_size in ((300, ""), (-600, "2")):
        assert "overlapped" not in render.as_text(render.blocks(found(gap, world_size)))


def test_a_training_on_the_cpu_is_told_what_to_change() -> None:
    series = run_of("7", {}, {"data": 0.1, "peers": 0.0, "rest": 0.2}, 3000)
    limit = {**series[0].labels, "__name__": "training_limited_by", "cause": "model_on_cpu"}
    double: Prometheus = Double([*series, Series(limit, series[0].points)])  # type: ignore[assignment]  # as above

    report = build.report(*jobs.of_job(double, "7", Range(NOW - 7 * 86400, NOW)), NOW)

    text = render.as_text(render.blocks(report), 200)
    assert "It ran on the CPU and held no GPU" in text
    assert f"Change first\n  {CAUSES['model_on_cpu'].advice[:20].capitalize()}" in text
    assert "GPU h" not in text.partition("Change first")[2]


@pytest.mark.parametrize(
    ("cause", "first", "further"),
    [
        ("host_bound", "torch.compile(model, mode='reduce-overhead')", ["Then: no .item()", "Then: larger batches."]),
        (
            "waiting_for_peers",
            "Put `gpugauge run --` before the command that starts each rank",
            ["That shows the rank for which the others wait; without these waits, steps up to 2 times", "Then: "],
        ),
        (
            "throttled",
            "Run the job on another GPU (sbatch --exclude=node-1): that on node-1 is slowed",
            ["Also: ask the administrator to check cooling, "],
        ),
        ("", "", ["Nothing to change was found"]),
    ],
)
def test_one_change_is_the_first(cause: str, first: str, further: list[str]) -> None:
    info = {"torch_process_info": {"world_size": "16"}}
    series = run_of("7", info, {"data": 0.1, "peers": 0.0, "rest": 0.2}, 3000)
    own = {key: value for key, value in series[0].labels.items() if key != "state"}
    for name, rate, labels in ((HELD, 1.0, own), (LOST, 0.5 * bool(cause), {**own, "cause": cause})):
        series.append(Series({**labels, "__name__": name}, [(at, rate * value) for at, value in series[0].points]))
    double: Prometheus = Double(series)  # type: ignore[assignment]  # as above

    report = build.report(*jobs.of_job(double, "7", Range(NOW - 7 * 86400, NOW)), NOW)

    text = render.as_text(render.blocks(report), 200)
    assert (f"Change first\n  {first}" in text) == bool(cause)
    assert all(f"\n  {line}" in text or text.count(f"\n{line}") == 1 for line in further), text


def test_a_training_on_the_cpu_is_told_how_long_it_waits() -> None:
    double: Prometheus = Double(run_of("7", {}, {"data": 0.3, "peers": 0.0, "rest": 0.1}, 3000))  # type: ignore[assignment]  # as above

    report = build.report(*jobs.of_job(double, "7", Range(NOW - 7 * 86400, NOW)), NOW)

    text = render.as_text(render.blocks(report), 200)
    assert "held no GPU: for 75 % of its time it waited for data." in text
    assert "Steps up to 4 times as fast." in text
    assert "1 step of" in render.as_text(render.blocks(replace(report, steps=1.0)))


def test_what_no_scrape_has_seen_is_stated() -> None:
    """A training whose end came while its exporter was away, and a process that only another exporter knows inside."""
    series = run_of("7", {}, {"data": 0.1, "peers": 0.0, "rest": 0.2}, 3000)
    ended = Series({**series[0].labels, "__name__": "training_end_info", "reason": "finished"}, series[0].points)
    info = next(each for each in series if each.name == "torch_process_info")
    seen = Series({**info.labels, "process": "8", "workload_job": "8", "command": "a.py"}, info.points)

    def unknown(*more: Series) -> str:
        double: Prometheus = Double([*series, *more])  # type: ignore[assignment]  # as above
        return " ".join(build.report(*jobs.of_job(double, "7", Range(NOW - 7 * 86400, NOW)), NOW).unknown)

    assert "How 1 process ended is not known" in unknown()
    last = series[0].points[-1][0]  # scrapes each 2 s
    quick = [Series(each.labels, [(NOW - (last - at) / 30, value) for at, value in each.points]) for each in series]
    found = jobs.of_job(Double(quick), "7", Range(NOW - 7 * 86400, NOW + 60))  # type: ignore[arg-type]  # as above
    assert [build.report(*found, NOW + seconds).running for seconds in (10, 20)] == [True, False]
    assert "ended is not known" not in unknown(ended)
    with pytest.raises(jobs.NoJobError, match=r"no scrape found .* training, .* \(a.py on node-1:10478\)"):
        jobs.of_job(Double([seen]), "8", Range(NOW - 7 * 86400, NOW))  # type: ignore[arg-type]  # as above


def test_a_gpu_that_others_use_is_left_out_whatever_the_pod_of_its_exporter() -> None:
    gpu = {"instance": "n", "uuid": "G"}
    held = {"ours-a": (100, 400), "other-a": (0, 200), "other-b": (500, 600)}
    series = [
        Series({**gpu, "__name__": "gpu_process_memory_used_bytes", "process": name[:-2], "pod": name[-1]}, points)
        for name, span in held.items()
        for points in [[(float(second), 1e9) for second in span]]
    ]
    joules = [(float(second), 300.0 * second) for second in range(0, 700, 10)]
    double: Prometheus = Double([*series, Series({**gpu, "__name__": "gpu_energy_joules_total"}, joules)])  # type: ignore[assignment]  # as above

    device = jobs._devices(double, series, Range(0, 1000))["n", "G"]

    assert device.joules(100, 400, ["ours"]) is None
    assert device.joules(100, 400, ["ours", "other"]) == pytest.approx(300 * 300)


@pytest.mark.parametrize("limit", [None, 400.0])
@pytest.mark.parametrize("after", [60.68e6, 9000.0, 0.0])
def test_a_counter_of_energy_that_falls_adds_no_more_than_a_gpu_uses(after: float, limit: float | None) -> None:
    """An exporter of a simulated GPU that starts again has a little less; a driver that is loaded again begins at 0."""
    seconds = range(0, 2400, 30)
    gpu = {"instance": "n", "uuid": "G"}
    joules = [(float(t), 60.73e6 + 300.0 * t if t < 1200 else after + 300.0 * (t - 1200)) for t in seconds]
    series = [
        Series(
            {**gpu, "__name__": "gpu_process_memory_used_bytes", "process": "a"}, [(float(t), 1e9) for t in seconds]
        ),
        Series({**gpu, "__name__": "gpu_energy_joules_total"}, joules),
    ]
    if limit:
        series.append(Series({**gpu, "__name__": "gpu_power_limit_watts"}, [(float(t), limit) for t in seconds]))
    device = jobs._devices(Double(series), series, Range(0, 2400))["n", "G"]  # type: ignore[arg-type]  # as above

    assert device.joules(0, 2370, ["a"]) == pytest.approx(300 * 2340, rel=0.02)


def test_runs_one_after_the_other_add_up() -> None:
    parts = {"data": 0.1, "peers": 0.0, "rest": 0.2}
    first, second = (run_of("7", {"torch_process_info": {"rank": ""}}, parts, steps) for steps in (3000, 1000))

    report = build.report(JobId("slurm", "", "7"), one_after_the_other(first, second), NOW)

    assert report.runs == 2
    assert report.steps == pytest.approx(4000, rel=0.01)
    assert "2 runs, one after the other" in render.as_text(render.blocks(report))


def test_top_adds_up_to_all_jobs() -> None:
    worlds = [drawn(seed, NOW, 7200) for seed in draws(2, 8)]
    double: Prometheus = Double([series for world in worlds for series in world.series])  # type: ignore[assignment]  # as above
    prices = Prices(currency="EUR", gpu_hour={"NVIDIA H200": 2.0}, pue=1.5, co2e_grams_per_kilowatt_hour=100)

    found = top.read(double, Range(NOW - 7 * 86400, NOW), "job", prices)
    all_of_them = top.read(double, Range(NOW - 7 * 86400, NOW), "user", prices)

    assert sorted(row.name for row in found.rows) == sorted(f"slurm:{world.job}" for world in worlds)
    assert len(all_of_them.rows) == 1
    held = sum(row.gpu_hours.held for row in found.rows)
    assert all_of_them.rows[0].gpu_hours.held == pytest.approx(held)
    for row in found.rows:
        assert row.cost is not None
        assert row.cost.held == pytest.approx(2 * row.gpu_hours.held)
        assert row.cost.lost == pytest.approx(2 * row.gpu_hours.all_lost)
    assert found.rows[0].gpu_hours.all_lost >= found.rows[-1].gpu_hours.all_lost
    assert "EUR" in render.as_text(top.blocks(found, 10))


def test_equal_names_are_told_apart_and_simulated_gpus_marked() -> None:
    """Three launches of one program, by torchrun."""
    parts = {"data": 0.1, "peers": 0.0, "rest": 0.2}
    series = []
    for number, node, of in (("1", "node-1", "true"), ("2", "node-2", "false"), ("3", "node-2", "false")):
        job = {
            "workload_job_kind": "launch",
            "workload_job": f"{node}/ann/torchrun-{number}a",
            "workload_command": "a.py",
        }
        made = run_of(number, {"torch_process_info": job}, parts, 1000 * int(number))
        for each in made:
            each.points[:] = [(at + 3600 * int(number), value) for at, value in each.points]
        begin = made[0].points[0][0]
        rates = {HELD: 1.0, f"{LOST}/unknown": 0.3, f"{LOST}/unused_gpus": 0.2}
        for name, rate in rates.items():
            metric, _, cause = name.partition("/")
            labels = {**made[0].labels, "instance": node, "__name__": metric, **({"cause": cause} if cause else {})}
            labels.pop("state")
            series.append(Series(labels, [(at, rate * (at - begin + 60)) for at, _ in made[0].points]))
        build_info = {"__name__": "gpugauge_build_info", "instance": node, "simulated": of}
        series += [Series({**each.labels, "instance": node}, each.points) for each in made]
        series.append(Series(build_info, [(begin, 1.0)] * (of == "true")))
    double: Prometheus = Double(series)  # type: ignore[assignment]  # as above
    span = Range(NOW - 7 * 86400, NOW)

    found = top.read(double, span, "job", Prices())
    text = " ".join(render.as_text(top.blocks(found, 10), 200).split())

    assert found.begin == pytest.approx(NOW - 86400 + 3600, abs=120)
    assert len({row[0] for row in top.blocks(found, 10)[0].table[1:]}) == 3
    assert "torchrun on node-2, 20" in text
    assert (
        "The cause of 60 % of it is not known. The largest known part of the loss, 40 %: a program holds GPUs" in text
    )
    assert "torchrun on node-2, 2026-09-20 16:13 UTC (+1 ranks)" in text
    forms = [in_form(found, top.Top, top.blocks(found, 10), form, NOW) for form in ("text", "markdown", "html", "json")]
    assert all("SIMULATED" in form or '"simulated": true' in form for form in forms)
    reports = [
        build.report(*jobs.of_job(double, f"launch:{job}", span), NOW)
        for job in ("node-1/ann/torchrun-1a", "node-2/ann/torchrun-2a")
    ]
    assert [report.simulated for report in reports] == [True, False]
    for blocks in (render.blocks(reports[0]), compare.blocks(compare.compare(*reports))):
        assert "SIMULATED: these GPUs do not exist." in render.as_text(blocks)
    assert "SIMULATED" not in render.as_text(render.blocks(reports[1]))
    assert [job.name[-2:] for job, _ in build.last_runs(double, "a.py", span)] == ["2a", "3a"]


def test_comment_is_that_of_jobstats() -> None:
    world = drawn(3, NOW)
    job, found = jobs.of_job(Double(world.series), world.job, Range(NOW - 7 * 86400, NOW))  # type: ignore[arg-type]  # as above
    report = build.report(job, found, NOW)

    text = jobstats.comment(report, found)

    document = json.loads(gzip.decompress(base64.b64decode(text.removeprefix("JS1:"))))
    assert document["gpus"] == report.devices
    assert document["total_time"] == round(report.end - report.begin)
    assert set(document["nodes"]) == {node.partition(":")[0] for node in report.nodes}
    for node in document["nodes"].values():
        assert set(node["gpu_total_memory"]) == set(node["gpu_utilization"]) == set(node["gpu_used_memory"])
        assert all(share == pytest.approx(100 * BUSY, rel=0.15) for share in node["gpu_utilization"].values())
        assert not {"cpus", "used_memory"} & set(node), "what is not known is left out"


def test_each_cause_has_a_colour() -> None:
    css = (Path(page.__file__).parent / "report.css").read_text()

    assert [c.name for c in CAUSES.values() if not c.colour.startswith("#") and f"--{c.colour}:" not in css] == []
    assert [c.name for c in CAUSES.values() if "green" in c.colour] == [], "a loss does not look as what is used"
