"""Rules and dashboards on VictoriaMetrics: vmalert loads them, and finds what Prometheus finds."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.artifacts.rules.rule_stories import STORIES as ALERT_STORIES
from tests.artifacts.rules.test_texts import drawn
from tests.drawn import draws, seeds
from tests.e2e.backfill import Api, Sample, labelled
from tests.e2e.programs import Prometheus, daemon, victoria, wait_for
from tests.e2e.ruletester import promtools, story_identity

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from qa.bench.alerts.replay import dump
from qa.bench.alerts.replay import replay as by_promtool
from qa.bench.alerts.story import SHIPPED, Story, read
from qa.deploy.victoria_metrics import database, replay
from qa.worlds.drawn_fleets import SECONDS, draw
from qa.worlds.test_dashboards import World, missing_data_names_the_nodes, no_query_fails, wasted_gpus

pytestmark = [pytest.mark.e2e, pytest.mark.deploy]

MINUTE = 60
# Recorded stories in which alerts about a load, an idle job, GPUs and exporters fire, and one drawn.
STORIES = (
    "data-loading",
    "card-lost",
    "cpu-build",
    "held-idle",
    "exporter-down",
    "throttled",
    "scrape-gaps",
    "drawn-07",
)


def test_every_drawn_set_of_rules_loads(tmp_path: Path) -> None:
    """With the expressions and the templates of all alerts."""
    sets = [Parameters(critical=0.2, per_cause=True), *(Parameters(**drawn(seed)) for seed in range(20))]
    for number, parameters in enumerate(sets):
        named = parameters.model_copy(update={"name": f"{parameters.name}{number}"})
        (tmp_path / f"{number}.yaml").write_text(rules.as_prometheus(named))
    command = [victoria("vmalert"), "-dryRun", f"-rule={tmp_path}/*.yaml", "-rule.validateTemplates=true"]

    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert f"found {len(sets)} files" in done.stderr


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    return [read(SHIPPED / f"{name}.json.gz") for name in STORIES]


def samples(story: Story, begin: int) -> Iterator[Sample]:
    """Yield the samples of a story, which is a cluster of its own and begins at the Unix time 0."""
    for name, notation in story.series.items():
        own = f'{name.removesuffix("}")},cluster="{story.name}"}}'
        at, moved = begin, begin if "_timestamp_seconds{" in name else 0
        for word in notation.split():
            found = re.fullmatch(r"(?P<value>[^x]+?)(?P<step>(?<!e)[-+][^x]+)?(x(?P<times>\d+))?", word)
            assert found, word
            for number in range(int(found["times"] or 0) + (found["value"] != "_")):
                if found["value"] not in {"_", "stale"}:
                    yield own, moved + float(found["value"]) + number * float(found["step"] or 0), at
                at += story.interval


def about(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return what identifies an alert. The index is left out: samples that are imported have no staleness marker, so
    the one before a GPU is lost is seen for a while.
    """
    dropped = {"__name__", "alertname", "alertgroup", "alertstate", "severity", "action", "cluster", "index"}
    return frozenset(labels.items() - {item for item in labels.items() if item[0] in dropped})


def test_a_replay_of_recorded_stories_fires_the_alerts_of_prometheus(stories: list[Story], tmp_path: Path) -> None:
    tree = rules.groups(Parameters())
    end = int(time.time()) // MINUTE * MINUTE
    begin = end - max(story.minutes for story in stories) * MINUTE
    with database(tmp_path, (sample for story in stories for sample in samples(story, begin))) as url:
        replay(url, tmp_path, tree, begin, end)
        fired = Api(url, end, end - begin).over_time('ALERTS{alertstate="firing"}', MINUTE)
    found = {
        (alert["metric"]["cluster"], alert["metric"]["alertname"], about(alert["metric"])): first - begin
        for alert in fired
        for first, _ in alert["values"][:1]
    }

    expected: dict[tuple[str, str, frozenset[tuple[str, str]]], int] = {}
    for story in stories:
        for run in by_promtool(story, tree, promtools()[1]):
            expected.setdefault((story.name, run.alert, about(run.labels)), run.begin * MINUTE)
    assert len({name for _, name, _ in expected}) > 3
    assert found.keys() == expected.keys()
    # promtool evaluates every two minutes, and the series of another group are one evaluation old.
    late = {key: (expected[key] - found[key]) / MINUTE for key in found}
    assert {key: minutes for key, minutes in late.items() if not -2 <= minutes <= 6} == {}


def test_vmalert_fires_each_alert_of_the_pack_with_its_identity_and_resolves_it(tmp_path: Path) -> None:
    """In its own rule tester, with the groups and `keep_firing_for`; vmalert adds the name of the group."""
    stories = [story for story in ALERT_STORIES if story.parameters == Parameters()]
    groups = rules.groups(Parameters())["groups"]
    group_of = {rule.get("alert"): group["name"] for group in groups for rule in group["rules"]}
    (tmp_path / "rules.yaml").write_text(rules.as_prometheus(Parameters()))
    tests = []
    for story in stories:
        selector = f'ALERTS{{alertname="{story.alert}",alertstate="firing"}}'
        labels = {"alertname": story.alert, "alertgroup": group_of[story.alert], "alertstate": "firing"}
        sample = {"labels": labelled("ALERTS", labels | story_identity(story)), "value": 1}
        expected = [("18m", []), ("60m", [sample]), ("150m", [])]
        tests.append(
            {
                "name": story.alert,
                "interval": "1m",
                "input_series": [
                    {
                        "series": labelled(row.name, {"instance": "node-1", **row.labels}),
                        "values": row.values([("good", 20), ("bad", 41), ("good", 90)]),
                    }
                    for row in story.rows
                ],
                "metricsql_expr_test": [
                    {"expr": selector, "eval_time": at, "exp_samples": found} for at, found in expected
                ],
            }
        )
    order = [group["name"] for group in groups]
    tree = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "group_eval_order": order, "tests": tests}
    (tmp_path / "test.yaml").write_text(dump(tree))
    command = [victoria("vmalert-tool"), "unittest", f"--files={tmp_path / 'test.yaml'}"]

    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)

    assert len(tests) > 20
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_scrapes_the_daemon(tmp_path: Path) -> None:
    """It asks for text, in which no series is left out."""
    with daemon(tmp_path, "--simulate=node") as running:
        target = {"targets": [running.url.removeprefix("http://")]}
        job = {"job_name": "gpugauge", "params": {"zeros": ["omit"]}, "static_configs": [target]}
        (tmp_path / "scrape.json").write_text(
            json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
        )
        with database(tmp_path, (), f"-promscrape.config={tmp_path / 'scrape.json'}") as url:
            server = Prometheus(url)
            zeros = 'count(training_lost_seconds_total{cause!="unknown"} == 0)'
            assert (wait_for(lambda: server.value(zeros), 60, "it has scraped") or 0) > 10
            assert server.value("count(gpu_up)") == len(running.series("gpu_up", "uuid"))


@seeds(draws(2, 10))
def test_a_drawn_fleet(tmp_path: Path, seed: int) -> None:
    fleet = draw(seed)
    end = int(time.time()) // MINUTE * MINUTE
    with database(tmp_path, fleet.samples(end)) as url:
        replay(url, tmp_path, rules.groups(Parameters(scrape_interval=60)), end - SECONDS, end)
        world = World(fleet, Api(url, end, SECONDS))
        no_query_fails(world)
        wasted_gpus(world)
        missing_data_names_the_nodes(world)
