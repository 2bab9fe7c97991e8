"""The dashboards as Grafana shows them, on a real Prometheus with the rules and drawn fleets whose truth is known.

A push draws a fleet of its day, `make everything` all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from grafana.build import DASHBOARDS
from grafana.build.missing import TEXTS
from qa.worlds.drawn_fleets import SECONDS, DrawnFleet, DrawnJob, JobId, draw

from gpugauge.artifacts.rules.options import Parameters
from tests.drawn import draws, seeds
from tests.e2e.backfill import Api, evaluate_rules, written
from tests.e2e.grafana import Grafana
from tests.e2e.programs import prometheus

pytestmark = pytest.mark.e2e

FLEETS = 50
ALERTMANAGER = yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/alertmanager.yaml").read_text())
JOB = ("cluster", "workload_job_kind", "workload_namespace", "workload_job")
NO_RULES = "-1"


@dataclass
class World:
    """A fleet, and the API of a Prometheus that knows it."""

    fleet: DrawnFleet
    api: Api

    def open(self, dashboard: str, **chosen: str) -> Grafana:
        return Grafana(self.api, DASHBOARDS[dashboard](), chosen)


def made(fleet: DrawnFleet, folder: Path, *, rules: bool) -> int:
    """Write the fleet's hour, with or without what the rules record, and return its end."""
    end = int(time.time()) // 60 * 60
    written(folder, fleet.samples(end))
    if rules:
        evaluate_rules(folder, end, SECONDS, Parameters(scrape_interval=60))
    return end


@pytest.fixture(scope="module")
def without_rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, fleet = tmp_path_factory.mktemp("bare"), draw(0)
    end = made(fleet, folder, rules=False)
    with prometheus(folder) as server:
        yield World(fleet, Api(server.url, end, SECONDS))


def no_query_fails(world: World) -> None:
    for name in DASHBOARDS:
        shown = list(world.open(name).shown())

        assert len(shown) > 15
        assert [panel.title for panel in shown if not panel.series and not panel.empty_text] == [], name


def wasted_gpus(world: World) -> None:
    fleet = world.open("fleet")
    truth = sum(job.wasted for job in world.fleet.judged)

    assert fleet.panel("GPUs wasted").number() == pytest.approx(truth, abs=0.02)
    table = fleet.panel("What is wasted, by whom, why and where").by(*JOB)
    assert {JobId(*key): value for key, value in table.items()} == {
        job.id: pytest.approx(job.wasted, abs=0.02) for job in world.fleet.judged
    }


def gpu_hours_by_job(world: World) -> None:
    table = world.open("fleet").panel("GPU hours, by job").by(*JOB, of=1)
    running = {job.id: job.wasted for job in world.fleet.judged if all(not node.down for node, _ in job.places)}

    assert {key: table[key] for key in running} == {
        # In steps of five minutes; the first have no rate yet.
        key: pytest.approx(wasted * SECONDS / 3600, rel=0.2, abs=0.05)
        for key, wasted in running.items()
    }


def ended_jobs(world: World) -> None:
    """Those are trainings; of others it is not known when they end."""
    shown = {JobId(*key) for key in world.open("fleet").panel("Ended jobs").by(*JOB)}
    fleet = world.fleet
    gone = {
        job.id
        for job in fleet.jobs
        if job.trains and job.ended and any(not node.blind and node.down < 50 for node, _ in job.places)
    }
    others = {job.id for job in fleet.jobs if not job.trains or (not job.ended and fleet.seen(job))}

    assert gone - shown == set()
    assert others & shown == set()


def missing_data_names_the_nodes(world: World) -> None:
    gaps = world.open("fleet").panel("What is missing, since when and why").by("cluster", "instance", "gap") or {}

    assert set(gaps) == {
        (node.cluster, node.name, "no driver: driver_not_loaded" if node.blind else DOWN)
        for node in world.fleet.nodes
        if node.blind or node.down
    }


DOWN = "the node is down, or its exporter is not scraped"


def notifications_are_those_of_alertmanager(world: World) -> None:
    fires = world.api.now('ALERTS{alertstate="firing"}')
    alerts = [dict(series["metric"]) for series in fires]
    told = [alert for alert in alerts if not inhibited(alert, alerts)]
    groups = {
        (route["receiver"], *(alert.get(key, "") for key in group_by(route)))
        for alert in told
        for route in [receiver(alert)]
    }

    shown = world.open("fleet").panel("Notifications").number()

    assert shown == len(groups)


def matches(alert: dict[str, str], matchers: list[str]) -> bool:
    """Return whether an alert matches, as Alertmanager reads matchers."""
    for matcher in matchers:
        name, operator, value = re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]  # it matches, or the test fails
        actual = alert.get(name, "")
        if not (re.fullmatch(value, actual) if operator == "=~" else actual == value):
            return False
    return True


def inhibited(alert: dict[str, str], others: list[dict[str, str]]) -> bool:
    return any(
        matches(alert, rule["target_matchers"])
        and matches(other, rule["source_matchers"])
        and all(alert.get(label, "") == other.get(label, "") for label in rule["equal"])
        for rule in ALERTMANAGER["inhibit_rules"]
        for other in others
        if other is not alert
    )


def receiver(alert: dict[str, str]) -> dict[str, object]:
    """Return the route of an alert to people: the first that matches and does not continue."""
    route = ALERTMANAGER["route"]
    return next((r for r in route["routes"] if not r.get("continue") and matches(alert, r["matchers"])), route)


def group_by(route: dict[str, object]) -> list[str]:
    return route.get("group_by", ALERTMANAGER["route"]["group_by"])  # type: ignore[return-value]  # read from YAML


def the_job_dashboard_opens_on_the_worst_job(world: World) -> None:
    job = world.open("job")
    worst = max((job.wasted for job in world.fleet.judged), default=0)

    names = {job.id.name for job in world.fleet.judged if job.wasted > worst - 0.05}

    assert job.values()["workload"] in names or not worst


def the_job_dashboard_says_what_the_job_wastes(world: World) -> None:
    for job, opened in each_job(world):
        assert opened.panel("GPUs wasted").number() == pytest.approx(job.wasted, abs=0.02)
        places = {(node.name, uuid) for node, uuid in job.places if not (node.down or node.blind)}
        assert set(opened.panel("Nodes and GPUs").by("instance", "uuid")) == places


def the_job_dashboard_says_what_a_step_gains(world: World) -> None:
    for job, opened in each_job(world):
        panel = opened.panel("What to do")
        for query in range(3):
            truth = {(cause,): pytest.approx(bounds[query]) for cause, bounds in job.gains().items()}
            assert panel.by("cause", of=query + 1) == truth, job
        assert {limit for _, limit in panel.by("cause", "next", of=1)} == ({job.after} if job.gains() else set())


def test_some_jobs_of_the_fleets_have_gains_and_mistakes() -> None:
    jobs = [job for seed in range(3) for job in draw(seed).judged]

    assert any(job.gains() for job in jobs)
    assert any(job.made() for job in jobs)
    assert not all(job.gains() and job.made() for job in jobs)


def the_job_dashboard_says_which_mistakes_are_made(world: World) -> None:
    for job, opened in each_job(world):
        shown = opened.panel("Known mistakes").by("mistake")
        decided = any(value is not None for made in job.mistakes.values() for value in job.of_seen(made))
        absent = "none found" if decided else "not known: no process reports through the hook (docs/hook.md)"

        assert shown == ({(mistake,): count for mistake, count in job.made().items()} or {(absent,): 0})


def each_job(world: World) -> Iterator[tuple[DrawnJob, Grafana]]:
    for job in world.fleet.judged:
        chosen = {"cluster": job.id.cluster or ".*", "kind": job.id.kind, "namespace": job.id.namespace}
        yield job, world.open("job", **chosen, workload=job.id.name)


def each_gpu_of_a_node_is_once_in_the_list(world: World) -> None:
    node = next(node for node in world.fleet.nodes if not node.blind)
    opened = world.open("node", cluster=node.cluster or ".*", instance=node.name)
    variable = next(v for v in opened.dashboard["templating"]["list"] if v["name"] == "uuid")

    assert sorted(opened.options(variable, opened.values())) == sorted(node.uuids)


@seeds(draws(1, FLEETS))
def test_a_drawn_fleet(tmp_path: Path, seed: int) -> None:
    fleet = draw(seed)
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        no_query_fails(world)
        wasted_gpus(world)
        gpu_hours_by_job(world)
        ended_jobs(world)
        missing_data_names_the_nodes(world)
        notifications_are_those_of_alertmanager(world)
        the_job_dashboard_opens_on_the_worst_job(world)
        the_job_dashboard_says_what_the_job_wastes(world)
        the_job_dashboard_says_what_a_step_gains(world)
        the_job_dashboard_says_which_mistakes_are_made(world)
        each_gpu_of_a_node_is_once_in_the_list(world)


def test_without_rules_no_panel_is_calm(without_rules: World) -> None:
    shown = {panel.title: panel for panel in without_rules.open("fleet").shown()}

    for title in ("GPUs wasted", "Training load", "Given and unused", "Notifications"):
        assert str(int(shown[title].number())) == NO_RULES
    assert TEXTS[NO_RULES] == "no rules loaded"
    for title, label in (
        ("What is wasted, by whom, why and where", "workload_job"),
        ("Notifications about firing alerts", "alertname"),
        ("Why: GPUs wasted, by cause", "cause"),
        ("GPUs wasted, by cause", "cause"),
        ("GPU hours wasted, by user", "workload_user"),
        ("Ended jobs", "workload_job"),
        ("What is missing, since when and why", "gap"),
    ):
        assert "no rules loaded" in {series["metric"].get(label) for series in shown[title].series}, title


def test_without_rules_the_job_dashboard_works(without_rules: World) -> None:
    the_job_dashboard_says_what_the_job_wastes(without_rules)


def test_without_exporters_nothing_is_calm(tmp_path: Path) -> None:
    written(tmp_path, [('other{a="b"}', 1.0, int(time.time()) - 60)])
    with prometheus(tmp_path) as server:
        fleet = Grafana(Api(server.url, int(time.time()), SECONDS), DASHBOARDS["fleet"]())
        assert fleet.panel("GPUs wasted").number() == -2
        assert fleet.panel("GPUs with a fault").number() == -2
        gaps = {series["metric"]["gap"] for series in fleet.panel("What is missing, since when and why").series}
        assert gaps == {"no exporter is scraped", "no data"}
