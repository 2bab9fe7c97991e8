"""Every panel on an hour of simulated nodes has series with Grafana's default settings and a scrape every 60 seconds.

`make everything` has 15 and 30 seconds, too. One of the nodes is down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from grafana.build import DASHBOARDS
from grafana.build.queries import EVERY_PRICE
from qa.bench.fleet_bodies import Template

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.drawn import EVERYTHING
from tests.e2e.backfill import Api, evaluate_rules, written
from tests.e2e.grafana import Grafana
from tests.e2e.programs import prometheus
from tests.e2e.simulated_hour import hour, pages
from tests.grafana.dashboard_reading import instant, panels

pytestmark = pytest.mark.e2e

NODES = {"trainings": "node", "causes": "bottlenecks", "mig": "a100-mig", "failing": "failing-card", "fans": "geforce"}
ABSENT = {"Given to a job and unused"}  # the scenarios have no scheduler
SCRAPES = (60, 30, 15) if EVERYTHING else (60,)
MILLION = 1_000_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Template]:
    return {name: pages(scenario, tmp_path_factory.mktemp(name)) for name, scenario in NODES.items()}


@dataclass
class Hour:
    """An hour in a Prometheus, by seconds between two scrapes."""

    folder: Path
    end: int
    scrape: int


@pytest.fixture(scope="module", params=SCRAPES)
def recorded(
    nodes: Mapping[str, Template], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Hour:
    made = Hour(tmp_path_factory.mktemp("hour"), int(time.time()) // 60 * 60, request.param)
    written(made.folder, hour(nodes, made.end, made.scrape, {"fans": 20}))
    parameters = Parameters(scrape_interval=60)
    evaluate_rules(made.folder, made.end, 3600, parameters)
    prices = {**EVERY_PRICE, "prices": dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), 2.0)}
    evaluate_rules(made.folder, made.end, 3600, parameters, rules.cost_groups(parameters, **prices))
    return made


@pytest.fixture(scope="module")
def api(recorded: Hour) -> Iterator[Api]:
    with prometheus(recorded.folder) as server:
        # At the time of an evaluation, older Prometheus count both ends of a range.
        yield Api(server.url, recorded.end + 1, 3600)


def answered(api: Api, name: str) -> set[str]:
    """Return the panels that have series, with All and with each job."""
    dashboard = DASHBOARDS[name]()
    opened = Grafana(api, dashboard)
    known = opened.values()
    job = next((each for each in dashboard["templating"]["list"] if each["name"] == "workload"), None)
    users = [Grafana(api, dashboard, {"workload": each}) for each in opened.options(job, known)] if job else [opened]
    if name == "node":
        users = [Grafana(api, dashboard, {"instance": node}) for node in NODES]
    return {shown.title for user in users for shown in user.shown() if shown.series}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_has_series(api: Api, name: str) -> None:
    assert {panel["title"] for panel in panels(DASHBOARDS[name]())} - answered(api, name) - ABSENT == set()


def test_the_fleet_wastes_what_its_nodes_waste(api: Api) -> None:
    """With the idle notebook, which has a number of its own, too; without the server, which is no training."""
    nodes = [Grafana(api, DASHBOARDS["node"](), {"instance": node}) for node in NODES]
    tiles = [node.panel("GPUs wasted") for node in nodes]
    wasted, idle = ([max(tile.number(of), 0) if tile.results[of] else 0 for tile in tiles] for of in (0, 1))

    assert sum(idle) == 1
    listed = [sum(node.panel("Processes").by("process").values()) for node in nodes]
    assert listed == pytest.approx([sum(both) for both in zip(wasted, idle, strict=True)])
    opened = Grafana(api, DASHBOARDS["fleet"]())
    held, hours = (opened.panel("GPU hours, by job").by("workload_job", of=of) for of in (0, 1))
    (notebook,) = (job for (job,) in held if "ipykernel" in job)
    assert held[notebook,] == hours[notebook,] > 0
    users = opened.panel("GPU hours wasted, by user").by("workload_user")
    tile = opened.panel("Hours wasted")
    assert sum(users.values()) == pytest.approx(sum(hours.values())) == tile.number(0) + tile.number(1)
    assert tile.number(1) == hours[notebook,]
    cost = Grafana(api, DASHBOARDS["cost"]()).panel("GPU hours").number(2)
    assert tile.number(0) == pytest.approx(cost, rel=0.1)
    fleet = opened.panel("GPUs wasted now")
    assert [fleet.number(of) for of in range(3)] == pytest.approx([sum(wasted) + 1, sum(wasted), 1], rel=0.02)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("fleet", "Out of order: GPUs, and nodes that are not seen"),
        ("node", "Faults of GPUs, and what to do first: all steps of the repair are below"),
    ],
)
def test_heat_is_not_a_power_brake(api: Api, name: str, title: str) -> None:
    faults = Grafana(api, DASHBOARDS[name](), {"instance": "causes"}).panel(title).by("instance", "summary")

    assert ("causes", "lowers its clocks because of heat") in faults


@pytest.mark.parametrize("name", ["fleet", "exporter"])
def test_a_thousand_nodes_are_no_burden(api: Api, recorded: Hour, name: str) -> None:
    """The samples that a query loads grow with the nodes, the hours and the scrapes: 3 hours, one every 15 s."""
    opened = Grafana(api, DASHBOARDS[name]())
    values = opened.values()
    scale = 1000 / len(NODES) * 3 * recorded.scrape / 15
    costly = {}
    for panel in panels(opened.dashboard):
        for target in panel["targets"]:
            if not instant(target):
                query, step = opened.text(target, 900, values)
                costly[panel["title"]] = api.samples(query, step) * scale
    assert {title: count for title, count in costly.items() if count > 20 * MILLION} == {}
