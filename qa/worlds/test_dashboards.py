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
from grafana.build.jobs import BROKEN as BROKEN_GPU
from grafana.build.words import CODES, ENDED, NO_DATA, NO_RULES, NOT_SEEN, ON_CPU, SEVERAL_JOBS, SEVERAL_NODES
from grafana.build.words import JUDGING as YOUNG
from tests.drawn import draws, seeds
from tests.e2e.backfill import Api, evaluate_rules, labelled, written
from tests.e2e.grafana import Grafana
from tests.e2e.programs import prometheus

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.driver.vendors.vendor import RESTART
from gpugauge.faults.table import FAULTS as FAULT_TABLE
from qa.worlds.drawn_fleets import (
    BROKEN,
    LOST,
    MINUTE,
    SECONDS,
    STEPS,
    STEPS_OF_LOST,
    WATTS,
    DrawnFleet,
    DrawnJob,
    DrawnNode,
    JobId,
    advised,
    draw,
)

pytestmark = pytest.mark.e2e

FLEETS = 50
ALERTMANAGER = yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/alertmanager.yaml").read_text())
JOB = ("cluster", "workload_job_kind", "workload_namespace", "workload_job")
GPU = ("cluster", "instance", "uuid")
TRAININGS = "Trainings: what is wasted, by whom, why, and what to do"
FAULTS, REPAIR = "Faults of GPUs, and what to do first: all steps of the repair are below", "Repair, step by step"
OUT_OF_ORDER = "Out of order: GPUs, and nodes that are not seen"
NOTIFICATIONS = "Notifications about firing alerts"
LOOK = "ask the administrators about the node: if it is down, start the job elsewhere from its last checkpoint, or the "
LOOK += "last one before memory errors of its GPUs"
# Before the fault that a node had when it was seen last; the order of faults.
LAST, RANKS = "last known: ", {"lost": "2", "ecc": "3"}


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

        assert len(shown) >= 10
        assert [panel.title for panel in shown if not panel.series and not panel.empty_text] == [], name
        # With such a value Grafana finds no axis.
        assert [
            each for panel in shown for series in panel.series for each in series.get("values", ()) if each[1] == "NaN"
        ] == []


def wasted_gpus(world: World) -> None:
    fleet = world.open("fleet")
    truth = sum(job.wasted for job in world.fleet.judged)

    shown = fleet.panel("GPUs wasted now").number()
    assert shown == pytest.approx(truth, abs=0.02) if world.fleet.judged else str(int(shown)) in CODES
    graph = fleet.panel("GPUs wasted, by cause")
    last = [[each["values"][-1] for each in curves] for curves in graph.results]
    now = max(second for curves in last[:3] for second, _ in curves)  # a curve may have ended
    held, answer, by_cause = (sum(float(value) for second, value in curves if second == now) for curves in last[:3])
    assert by_cause == pytest.approx(truth, abs=0.02)
    assert answer == sum(
        node.faults.get(uuid) != "lost"
        for node in world.fleet.nodes
        if not (node.down or node.blind)
        for uuid in node.uuids
    )
    assert held == pytest.approx(
        sum(not (node.down or node.blind) for job in world.fleet.judged for node, _ in job.places), abs=0.02
    )
    nodes = [each_node(world, node) for node in world.fleet.nodes]
    by_node = [max(node.panel("GPUs wasted").number(), 0) for node in nodes]
    assert sum(by_node) == pytest.approx(truth, abs=0.1)
    of_processes = [sum(node.panel("Processes").by("process").values()) for node in nodes]
    assert of_processes == pytest.approx(by_node)
    assert fleet.panel("Nodes").by("cluster", "instance", of=2) == {
        (node.cluster, node.name): sum(
            where is node and node.faults.get(uuid) != "lost"
            for job in world.fleet.jobs
            for where, uuid in job.places
            if not job.ended
        )
        for node in world.fleet.nodes
        if not node.down and not node.blind
    }
    table = fleet.panel(TRAININGS).by(*JOB)
    assert {JobId(*key): value for key, value in table.items()} == {
        job.id: pytest.approx(job.wasted, abs=0.02) for job in world.fleet.judged
    }


def each_node(world: World, node: DrawnNode) -> Grafana:
    return world.open("node", cluster=node.cluster or ".*", instance=node.name)


def a_node_says_why_and_has_the_alerts_of_its_jobs(world: World) -> None:
    """As the dashboard of the fleet, not by what limits a process at this moment."""
    fires = [alert["metric"] for alert in world.api.now('ALERTS{alertstate="firing"}')]
    for node in world.fleet.nodes:
        opened, here = (
            each_node(world, node),
            [job for job in world.fleet.jobs if any(where is node for where, _ in job.places)],
        )
        running = {tuple(job.id) for job in here if not job.ended and not node.down and not node.blind}
        about = [
            alert
            for alert in fires
            if (alert.get("instance") == node.name and alert.get("cluster", "") == node.cluster)
            or tuple(alert.get(label, "") for label in JOB) in running
        ]
        told = [alert for alert in about if not inhibited(alert, fires)]
        names = {series["metric"]["alertname"] for series in opened.panel("Alerts").series}
        names -= {"none", "no data"}
        assert names <= {alert["alertname"] for alert in told}, node
        assert {group_of(alert) for alert in told} == {group_of(a) for a in told if a["alertname"] in names}, node
        said = {key[:-1]: key[-1] for key in world.open("fleet").panel(TRAININGS).by(*JOB, "state", of=-1)}
        places = {
            f"{number}-{node.name}-{uuid}": (uuid, said[tuple(job.id)])
            for number, job in enumerate(world.fleet.jobs)
            for where, uuid in job.places
            if where is node and tuple(job.id) in running and tuple(job.id) in said and not job.not_seen()
        }
        why = dict(opened.panel("Processes").by("process", "cause", of=-1))
        assert {process: cause for process, cause in why if process in places} == {
            process: state for process, (_, state) in places.items()
        }
        of_gpus = {uuid: cause for uuid, cause in opened.panel("GPUs").by("uuid", "cause", of=-2) if cause}
        assert of_gpus.items() >= {*places.values()}, node


def a_job_has_the_gpus_of_its_own_cluster(world: World) -> None:
    for job in world.fleet.judged:
        same = [other for other in world.fleet.jobs if other.id[1:] == job.id[1:] and not other.ended]
        opened = world.open("job", kind=job.id.kind, namespace=job.id.namespace, workload=job.id.name)
        numbers = {other.id.cluster: sum(not node.blind for node, _ in other.places) for other in same}
        found = opened.panel("Job").by("cluster")
        assert found == {(cluster,): number for cluster, number in numbers.items() if number}, job


def a_number_is_whole_or_not_known(world: World) -> None:
    """Power and steps of series that are younger than the window of a rate."""
    for node in world.fleet.nodes:
        if not node.down and not node.blind:
            assert each_node(world, node).panel("Power now").number() == pytest.approx(
                WATTS * (len(node.uuids) - list(node.faults.values()).count("lost")), rel=0.01
            )
    for _, opened in each_job(world):
        rate = opened.panel("Steps/s")
        assert not rate.series or rate.number() == pytest.approx(STEPS, rel=0.01)


def gpu_hours_by_job(world: World) -> None:
    fleet = world.open("fleet")
    table = fleet.panel("GPU hours, by job").by(*JOB, of=1)
    by_user, by_namespace = (
        sum(float(series["value"][1]) for series in fleet.panel(title).results[0])
        for title in ("GPU hours wasted, by user", "GPU hours wasted, by namespace and user")
    )
    headline, idle = (fleet.panel("Hours wasted").number(of) for of in (0, 1))
    for job, opened in each_job(world):
        assert opened.panel("GPUs wasted").number(1) == pytest.approx(table[tuple(job.id)]), job
    assert {round(by_user, 3), round(by_namespace, 3), round(max(headline, 0.0) + idle, 3)} == {
        round(sum(table.values()), 3)
    }
    running = {job.id: job.wasted for job in world.fleet.judged if all(not node.down for node, _ in job.places)}

    assert {key: table[key] for key in running} == {
        # Without the first minutes, which have no rate, and those since the last step of five.
        key: pytest.approx(wasted * SECONDS / 3600, rel=0.1, abs=0.05)
        for key, wasted in running.items()
    }


def ended_jobs(world: World) -> None:
    """Those are trainings; of others it is not known when they end."""
    shown = {JobId(*key) for key in world.open("fleet").panel("GPU hours, by job").by(*JOB)}
    listed = {JobId(*key) for key in world.open("fleet").panel(TRAININGS).by(*JOB, of=-1)}
    fleet = world.fleet
    gone = {
        job.id
        for job in fleet.jobs
        if job.trains and job.ended and any(not node.blind and node.down < 50 for node, _ in job.places)
    }

    assert gone - shown == set()
    assert {job.id for job in fleet.jobs if job.ended and not job.not_seen()} & listed == set()


def missing_data_names_the_nodes(world: World) -> None:
    opened = world.open("fleet")
    missing = [node for node in world.fleet.nodes if node.blind or node.down]
    listed = opened.panel(OUT_OF_ORDER).by(*GPU, "summary")
    gaps = {(cluster, name, text): since for (cluster, name, uuid, text), since in listed.items() if not uuid}

    assert gaps == {
        (node.cluster, node.name, BLIND if node.blind else down(world.fleet, node)): seen_last(world, node)
        for node in missing
    }
    for node in missing:
        ((text, since),) = [
            (text, since)
            for (uuid, text), since in each_node(world, node).panel(FAULTS).by("uuid", "summary").items()
            if not uuid
        ]
        assert (text, since) == (BLIND if node.blind else down(world.fleet, node), seen_last(world, node))
    ran = {(node.cluster, node.name): trainings_of(world.fleet, node) for node in missing}
    owners = opened.panel(OUT_OF_ORDER).by(*GPU, "workload_job_kind", "workload_job", "workload_user", of=1)
    assert {key[:2]: key[3:] for key in owners if not key[2]} == {
        key: (str(len(ids)), "jobs", "") if len(ids) > 1 else (ids[0].kind, ids[0].name, "ann")
        for key, ids in ran.items()
        if ids
    }
    lost = sum(map(bool, ran.values()))
    assert [opened.panel("Nodes not seen").number(of) for of in (0, 1)] == [len(missing), lost]


def seen_last(world: World, node: DrawnNode) -> float:
    """Return the time of the last sample of a node that is not scraped, else 0."""
    every = range(world.api.end - SECONDS, world.api.end + 1, world.fleet.scrape)
    return 1000 * max(at for at in every if world.api.end - at >= node.down * MINUTE) if node.down else 0


BLIND = "sees no GPU: driver driver_not_loaded"


def down(fleet: DrawnFleet, node: DrawnNode) -> str:
    trained = "trainings " * bool(trainings_of(fleet, node))
    return f"{trained}not seen for {node.down} min"


def trainings_of(fleet: DrawnFleet, node: DrawnNode) -> list[JobId]:
    """Return the trainings that ran on a node, which is not seen, when it was seen last."""
    return [
        job.id
        for job in fleet.jobs
        if job.trains and node.name in job.not_seen() and any(where is node for where, _ in job.places)
    ]


def faults_are_the_same_everywhere(world: World) -> None:
    """The headline, the list and the alerts. Those of a node that is not seen stay in the list."""
    every = {
        (node.cluster, node.name, uuid): (fault, node.down)
        for node in world.fleet.nodes
        if not node.blind
        for uuid, fault in node.faults.items()
    }
    truth = {gpu for gpu, (_, unseen) in every.items() if not unseen}
    fleet = world.open("fleet")
    alerts = world.api.now('ALERTS{alertstate="firing",uuid!="",severity!="info"}')

    counts = fleet.panel("Out of order")
    assert [counts.number(of) for of in (0, 1)] == [
        sum(fault == each for fault, unseen in every.values() if not unseen) for each in ("lost", "ecc")
    ]
    for node in fleet_nodes(world):
        own = [each_node(world, node).panel("Out of order").number(of) for of in (0, 1)]
        of_node = [fault for (*where, _), (fault, unseen) in every.items() if where == [node.cluster, node.name]]
        assert own == ([int(NOT_SEEN)] * 2 if node.down else [of_node.count(each) for each in ("lost", "ecc")])

    table = fleet.panel(OUT_OF_ORDER)
    to_do = {
        "lost": "now: ask the owners to end its programs, then systemctl reboot. replace it",
        "ecc": "when the jobs have ended: ask the owners to end its programs, then nvidia-smi --gpu-reset -i 0. "
        + RESTART,
    }
    for (summary, uuid, text), active in table.by("summary", "uuid", "advice").items():
        if uuid:
            unseen, fault = summary.startswith(LAST), summary.removeprefix(LAST)
            back = "when the node is back: " + to_do[fault].partition(": ")[2]
            assert text == (back if unseen else to_do[fault])
            if fault != "lost":
                assert active == 1000 * BROKEN, fault
            elif unseen:
                assert active == 0
            else:
                assert world.api.end - SECONDS <= active / 1000 <= world.api.end
    # What a node had is no fault of now: it is last, and in other words.
    shown = {key for key in table.by(*GPU, "summary", "rank") if key[2]}
    assert shown == {
        (*gpu, *((LAST + fault, f"last known{RANKS[fault]}") if unseen else (fault, RANKS[fault])))
        for gpu, (fault, unseen) in every.items()
    }
    assert {tuple(alert["metric"].get(label, "") for label in GPU) for alert in alerts} == truth


def fleet_nodes(world: World) -> list[DrawnNode]:
    return [node for node in world.fleet.nodes if not node.blind]


def each_gpu_has_its_state_and_its_owner(world: World) -> None:
    """Those with a fault are first, then the wasted ones, those that are not seen, those in use, and the free ones."""
    for node in world.fleet.nodes:
        opened = each_node(world, node)
        truth = {} if node.blind else {uuid: state_of(world.fleet, node, uuid) for uuid in node.uuids}
        found = opened.panel("GPUs").by("uuid", "state")
        assert found == {(uuid, words): level for uuid, (words, level) in truth.items()}, node
        holders = {
            uuid: job.id.name
            for job in world.fleet.jobs
            for where, uuid in job.places
            if where is node and not node.blind and (job.ended <= node.down if node.down else not job.ended)
        }
        # Who held a GPU when it was lost stays its owner.
        lost = {
            uuid: job.id.name
            for job in world.fleet.jobs
            for where, uuid in job.places
            if where is node and not (node.blind or node.down) and node.faults.get(uuid) == "lost"
        }
        owners = opened.panel("GPUs").by("uuid", "workload_job", "workload_user", of=-1)
        assert set(owners) == {(uuid, name, "ann") for uuid, name in {**lost, **holders}.items()}, node
        processes = opened.panel("Processes").by("workload_job", "unseen", of=-3)
        unseen = "not seen; this was its last" if node.down else ""
        assert set(processes) == {(name, unseen) for name in holders.values()}, node


def state_of(fleet: DrawnFleet, node: DrawnNode, uuid: str) -> tuple[str, float]:
    """Return the words of the state of a GPU, and its level."""
    fault = node.faults.get(uuid, "")
    if node.down:
        return f"not seen for {node.down} min" + (f", {LAST}{fault}" if fault else ""), 2.5 if fault else 1
    job = next((job for job in fleet.jobs if not job.ended and (node, uuid) in job.places), None)
    wasted = job and round(sum(job.lost.values()), 6) >= 0.5
    used = ("wasted", 2) if wasted else ("in use", 0.5) if job else ("free", 0)
    return (fault, 3) if fault else used


def notifications_are_those_of_alertmanager(world: World) -> None:
    fires = world.api.now('ALERTS{alertstate="firing"}')
    alerts = [dict(series["metric"]) for series in fires]
    told = [alert for alert in alerts if not inhibited(alert, alerts)]
    groups = {group_of(alert) for alert in told}

    fleet = world.open("fleet")
    ranks = fleet.panel(NOTIFICATIONS).by(*JOB, "instance", "uuid", "alertname")
    shown = fleet.panel("Notifications")
    since = fleet.panel(NOTIFICATIONS).by(*JOB, "instance", "uuid", "alertname", of=1)
    assert since.keys() == (ranks.keys() if groups else set())
    assert all(world.api.end - SECONDS <= begin / 1000 <= world.api.end for begin in since.values())

    assert len(ranks) == len(groups) or not groups
    assert [shown.number(of) for of in (0, 1)] == [list(ranks.values()).count(rank) for rank in (3, 2)]


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


def group_of(alert: dict[str, str]) -> tuple[object, ...]:
    """Return the group of an alert, as Alertmanager makes them."""
    route = receiver(alert)
    keys: list[str] = route.get("group_by", ALERTMANAGER["route"]["group_by"])  # type: ignore[assignment]  # read from YAML
    return route["receiver"], *(alert.get(key, "") for key in keys)


def the_job_dashboard_opens_on_the_worst_job(world: World) -> None:
    job = world.open("job")
    worst = max((job.wasted for job in world.fleet.judged), default=0)

    names = {job.id.name for job in world.fleet.judged if job.wasted > worst - 0.05}

    assert job.values()["workload"] in names or not worst


def the_job_dashboard_says_what_the_job_wastes(world: World) -> None:
    for job, opened in each_job(world):
        assert opened.panel("GPUs wasted").number() == pytest.approx(job.wasted, abs=0.02)
        of_job = opened.panel("Its GPUs")
        busy = {
            (node.name, uuid)
            for node, uuid in job.places
            if not (node.down or node.blind) and node.faults.get(uuid) != "lost"
        }
        assert set(of_job.by("instance", "uuid", of=-1)) == busy
        if not job.ended:
            last = {(node.name, uuid) for node, uuid in job.places if not node.blind}
            assert set(of_job.by("instance", "uuid")) == last


def a_job_is_neither_well_nor_ended_if_its_node_is_not_seen(world: World) -> None:
    shown = world.open("fleet").panel(TRAININGS)
    listed = shown.by(*JOB, "state", of=-1)
    table, levels = {JobId(*key[:-1]): key[-1] for key in listed}, {JobId(*key[:-1]): listed[key] for key in listed}
    advice = {JobId(*key[:-1]): key[-1] for key in shown.by(*JOB, "advice", of=-1)}
    for job in world.fleet.jobs:
        minutes = {node.name: node.down for node, _ in job.places}
        missing = {f"not known: {name} is not seen for {minutes[name]} min" for name in job.not_seen()}
        ended = job.ended and not missing and any(not node.blind for node, _ in job.places)
        if job.trains and (missing or ended):
            opened = opened_on(world, job)
            (state,) = {key[0] for key in opened.panel("Job").by("state", of=3)}
            assert state in (missing or {"ended"})
            assert not missing or (table[job.id] in missing and levels[job.id] == max(levels.values()))
            assert not missing or advice[job.id] == LOOK
            if not world.fleet.seen(job) or job.ended:
                assert opened.panel("Load").number() == int(NOT_SEEN if missing else ENDED)
                if missing:
                    the_last_faults_are_repaired_when_the_node_is_back(world, job, opened)


def the_last_faults_are_repaired_when_the_node_is_back(world: World, job: DrawnJob, opened: Grafana) -> None:
    shown = opened.panel("What to do").by("cause", "advice")
    ask = "ask the administrators for the repair, when the node is back: systemctl reboot. replace it"
    # One that has ended may have lost a GPU of a node that is seen.
    if any(not node.down and node.faults.get(uuid) == "lost" for node, uuid in job.places):
        return
    lost = {
        (f"GPU {node.uuids.index(uuid)} of {node.name}: last known: lost", ask)
        for node, uuid in job.places
        if node.down and node.faults.get(uuid) == "lost"
    }
    assert set(shown) == lost | {("not known: its node is not seen", LOOK)}, job
    # The node comes first.
    assert max(shown, key=shown.__getitem__)[1] == LOOK
    (at,) = [since for (_, advice), since in shown.items() if advice == LOOK]
    assert at in {seen_last(world, node) for node, _ in job.places}
    assert set(opened.panel("Alerts").by("alertname")) == {("ExporterDown",)}


def the_job_dashboard_says_what_a_step_gains(world: World) -> None:
    for job, opened in each_job(world):
        panel = opened.panel("What to do")
        for query in range(2):
            truth = {(c,): pytest.approx(bounds[query], rel=0.02) for c, bounds in bounded(job).items()}
            assert panel.by("cause", of=query + 2) == truth, job
        assert {limit for _, limit in panel.by("cause", "next", of=6)} == ({job.after} if job.gains() else set())


def bounded(job: DrawnJob) -> dict[str, list[float]]:
    """Return the gains of a job with their bounds: no more than what the cause takes allows."""
    return {
        cause: [min(bound, 1 / (1 - job.lost.get(cause, 0))) for bound in bounds]
        for cause, bounds in job.gains().items()
    }


def the_fleet_says_what_its_changes_gain(world: World) -> None:
    """In words, and as GPUs whose sum is the number above."""
    fleet = world.open("fleet")
    table = fleet.panel(TRAININGS)
    freed, words = table.by(*JOB, of=2), {key[:-1]: key[-1] for key in table.by(*JOB, "faster", of=5)}
    large = [job for job in world.fleet.judged if job.lost[job.main] >= 0.12]
    truth = {tuple(job.id): (job, gains[job.main]) for job in large if job.main in (gains := bounded(job))}
    assert freed.keys() == words.keys() == truth.keys()
    for key, (job, (expected, lower, upper)) in truth.items():
        gpus = sum(not (node.down or node.blind) for node, _ in job.places)
        assert freed[key] == pytest.approx(gpus * (1 - 1 / lower), rel=0.05, abs=0.02), job
        shown = [float(number) for number in words[key].removesuffix(" ×").split(" to ")]
        assert shown == pytest.approx([lower, upper] if len(shown) > 1 else [expected], rel=0.03, abs=0.06), job
        assert (len(shown) == 1) == (upper / lower <= 1.2), job
    if world.fleet.judged:
        assert fleet.panel("GPUs to free").number() == pytest.approx(sum(freed.values()))


def test_some_jobs_of_the_fleets_have_gains_and_mistakes() -> None:
    jobs = [job for seed in range(3) for job in draw(seed).judged]

    assert any(job.gains() for job in jobs)
    assert any(job.made() for job in jobs)
    assert not all(job.gains() and job.made() for job in jobs)


def the_advice_of_the_fleet_has_the_numbers(world: World) -> None:
    table = world.open("fleet").panel(TRAININGS).by(*JOB, "state", "advice", of=-1)
    advice = {JobId(*job): (state, text) for *job, state, text in table}
    for job in world.fleet.judged:
        if any("lost" in node.faults.values() for node, _ in job.places if not (node.down or node.blind)):
            assert job.not_seen() or advice[job.id][0] in {"its node must be rebooted", "one of its GPUs lost"}, job
        elif not job.not_seen() and job.lost[job.main] >= 0.12:
            assert advice[job.id] == (job.main, advised(job.main).partition(";")[0]), job


def the_job_dashboard_says_which_mistakes_are_made(world: World) -> None:
    for job, opened in each_job(world):
        shown = opened.panel("What to do")

        assert shown.by("cause", of=4) == {(mistake,): count for mistake, count in job.made().items()}
        assert {(mistake,) for mistake in job.made()} <= shown.by("cause", of=5).keys() != set()


def opened_on(world: World, job: DrawnJob) -> Grafana:
    chosen = {"cluster": job.id.cluster or ".*", "kind": job.id.kind, "namespace": job.id.namespace}
    return world.open("job", **chosen, workload=job.id.name)


def each_job(world: World) -> Iterator[tuple[DrawnJob, Grafana]]:
    for job in world.fleet.judged:
        yield job, opened_on(world, job)


def each_gpu_of_a_node_is_once_in_the_list(world: World) -> None:
    node = next(node for node in world.fleet.nodes if not node.blind)
    opened = each_node(world, node)
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
        a_node_says_why_and_has_the_alerts_of_its_jobs(world)
        a_job_has_the_gpus_of_its_own_cluster(world)
        a_number_is_whole_or_not_known(world)
        gpu_hours_by_job(world)
        ended_jobs(world)
        missing_data_names_the_nodes(world)
        faults_are_the_same_everywhere(world)
        each_gpu_has_its_state_and_its_owner(world)
        the_advice_of_the_fleet_has_the_numbers(world)
        a_job_is_neither_well_nor_ended_if_its_node_is_not_seen(world)
        notifications_are_those_of_alertmanager(world)
        the_job_dashboard_opens_on_the_worst_job(world)
        the_job_dashboard_says_what_the_job_wastes(world)
        the_job_dashboard_says_what_a_step_gains(world)
        the_fleet_says_what_its_changes_gain(world)
        the_job_dashboard_says_which_mistakes_are_made(world)
        each_gpu_of_a_node_is_once_in_the_list(world)


def test_without_rules_no_panel_is_calm(without_rules: World) -> None:
    shown = {panel.title: panel for panel in without_rules.open("fleet").shown()}

    for title in ("GPUs wasted now", "Hours wasted", "Notifications"):
        assert shown[title].number() == int(NO_RULES)
    assert CODES[NO_RULES][0] == "no rules loaded"
    for title, label in (
        (TRAININGS, "state"),
        (NOTIFICATIONS, "alertname"),
        ("GPUs wasted, by cause", "cause"),
        ("GPU hours wasted, by user", "workload_user"),
        ("GPU hours, by job", "workload_job"),
        ("GPU hours wasted, by namespace and user", "workload_user"),
    ):
        assert "no rules loaded" in {series["metric"].get(label) for series in shown[title].series}, title


def test_without_rules_the_job_dashboard_works(without_rules: World) -> None:
    the_job_dashboard_says_what_the_job_wastes(without_rules)


def cpu_facts() -> dict[str, float]:
    """Return the series of a training on the CPU whose loader needs more workers."""
    named = {"workload_job_kind": "slurm", "workload_job": "7", "job": "gpugauge", "instance": "gpu-0", "process": "p"}
    ids = {key: named[key] for key in ("job", "instance", "process")}
    return {
        labelled("gpu_process_host_info", {**named, "workload_user": "bo", "workload_command": "cpu.py"}): 1.0,
        labelled("training_state", {**ids, "state": "training_on_cpu"}): 1.0,
        labelled("training_loader_limited_by", {**ids, "reason": "too_few_workers"}): 1.0,
        labelled("training_advice_info", {**ids, "cause": "data_loading", "advice": "16 loader workers"}): 1.0,
        labelled("training_loader_expected_speedup_ratio", ids): 15.5,
    }


def test_in_the_first_minutes_nothing_is_zero(tmp_path: Path) -> None:
    """Exporters that were started two minutes ago, and a training on the CPU whose loader needs more workers."""
    fleet = draw(0)
    end = int(time.time()) // 60 * 60
    young = [sample for sample in fleet.samples(end) if end - sample[2] < 2 * MINUTE]
    written(tmp_path, [*young, *((name, value, end - ago) for name, value in cpu_facts().items() for ago in (60, 0))])
    with prometheus(tmp_path) as server:
        api = Api(server.url, end, SECONDS)
        opened = Grafana(api, DASHBOARDS["fleet"]())
        for title in ("GPUs wasted now", "Hours wasted", "Notifications"):
            assert opened.panel(title).number() == int(YOUNG), title
        assert {series["metric"]["state"] for series in opened.panel(TRAININGS).series} == {"being judged"}
        job = Grafana(api, DASHBOARDS["job"](), {"workload": "7"})
        assert {key[0] for key in job.panel("Job").by("state", of=3)} == {"training_on_cpu"}
        assert job.panel("Load").number() == int(ON_CPU)
        assert set(job.panel("What to do").by("cause", "advice", of=5)) == {("data_loading", "16 loader workers")}
        assert job.panel("Speedup").number() == 15.5
        for board in (job, Grafana(api, DASHBOARDS["node"](), {"instance": "gpu-0"})):
            reasons = {series["metric"]["state"] for series in board.panel("Memory used").series}
            assert reasons == {"just started"}
        world = World(fleet, api)
        a_number_is_whole_or_not_known(world)
        for each, opened in each_job(world):
            assert opened.panel("GPUs wasted").number() == int(YOUNG), each
        for node in fleet.nodes:
            opened = each_node(world, node)
            assert "wasted" not in {state for (state,) in opened.panel("GPUs").by("state")}
            assert opened.panel("Processes").by("process") == {}


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("cpu_limited", advised("cpu_limited")),
        (
            "waiting_for_peers",
            "find what limits rank 1 on gpu-0: it does most work of its own, and the others wait for it",
        ),
    ],
)
def test_advice_has_the_number_of_a_series(tmp_path: Path, cause: str, advice: str) -> None:
    fleet = one_job()
    (node,), (job,) = fleet.nodes, fleet.jobs
    node.uuids.append("GPU-1")
    job.places.append((node, "GPU-1"))
    job.lost = {cause: 0.4, "unknown": 0.1}
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        fleets, own = world.open("fleet").panel(TRAININGS), opened_on(world, job).panel("What to do")
        assert set(fleets.by("state", "advice", of=-1)) == {(cause, advice)}
        assert (cause, advice) in own.by("cause", "advice", of=5)


@pytest.mark.parametrize(
    ("cause", "faster"), [("model_on_cpu", set[tuple[str, ...]]()), ("data_loading", {("7", "up to 15.5 ×")})]
)
def test_the_gain_of_a_loader_is_not_that_of_a_gpu(tmp_path: Path, cause: str, faster: set[tuple[str, ...]]) -> None:
    end, fleet, facts = int(time.time()) // 60 * 60, one_job(), cpu_facts()
    fleet.jobs.clear()
    ids = {"job": "gpugauge", "instance": "gpu-0", "process": "p"}
    facts[labelled("training_limited_by", {**ids, "cause": cause})] = 1.0
    facts[labelled("training_loader_expected_speedup_lower_ratio", ids)] = 1.0
    hour = ((name, value, end - ago) for name, value in facts.items() for ago in range(SECONDS - MINUTE, -1, -MINUTE))
    written(tmp_path, [*fleet.samples(end), *hour])
    evaluate_rules(tmp_path, end, SECONDS, Parameters(scrape_interval=60))
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        table, own = world.open("fleet").panel(TRAININGS), world.open("job", workload="7").panel("What to do")
        assert faster or ("7", cause) in table.by("workload_job", "state", of=-1)
        assert set(table.by("workload_job", "faster", of=4)) == faster
        assert own.by("cause", of=2) == {("data_loading",): 15.5}


def one_job(began: int = 120) -> DrawnFleet:
    """Return a node with a training that wastes half a GPU."""
    node = DrawnNode("", "gpu-0", ["GPU-0"])
    job = DrawnJob(JobId("", "slurm", "", "7"), [(node, "GPU-0")], {"data_loading": 0.4, "unknown": 0.1}, began=began)
    return DrawnFleet(15, [node], [job], frozenset())


def test_gpu_hours_count_from_the_start_of_a_training(tmp_path: Path) -> None:
    fleet = one_job(began=12)
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        shown = world.open("fleet").panel("Hours wasted").number()
        # Up to the last five minutes.
        assert 0.5 * 6.5 / 60 < shown <= 0.5 * 12.5 / 60
        assert world.open("fleet").panel("GPUs wasted now").number() == int(YOUNG)
        assert opened_on(world, fleet.jobs[0]).panel("GPUs wasted").number(1) == pytest.approx(shown)


@pytest.mark.parametrize(
    ("minutes", "state"), [(7, "not known: gpugauge on gpu-0 has just started"), (20, "ended"), (0, "training")]
)
def test_a_job_is_not_ended_by_a_restart_of_the_exporter(tmp_path: Path, minutes: int, state: str) -> None:
    """Scrapes fail for four minutes, and then the processes are not there yet. Samples are read for five minutes."""
    fleet = one_job()
    end = int(time.time()) // 60 * 60
    since = end - minutes * MINUTE if minutes else end + 1
    written(
        tmp_path,
        (
            (name, 0.0 if name.startswith("up{") and since <= second < since + 4 * MINUTE else value, second)
            for name, value, second in fleet.samples(end)
            if second < since or "process=" not in name
        ),
    )
    with prometheus(tmp_path) as server:
        job = opened_on(World(fleet, Api(server.url, end, SECONDS)), fleet.jobs[0])
        assert {key[0] for key in job.panel("Job").by("state", of=3)} == {state}


@pytest.mark.parametrize(
    ("name", "title", "order"),
    [
        ("node", "GPUs", ("GPU", "level")),
        ("node", FAULTS, ("GPU", "rank")),
        ("fleet", TRAININGS, ("Where", "other", "level")),
        ("fleet", OUT_OF_ORDER, ("GPU", "Node", "rank")),
        ("fleet", NOTIFICATIONS, ("GPU", "Where", "Severity")),
        ("fleet", "Nodes", ("Node", "level")),
    ],
)
def test_the_gravest_lines_are_first_then_by_name(name: str, title: str, order: tuple[str, ...]) -> None:
    """A critical fault is critical whatever it wastes."""
    panel = next(panel for panel in DASHBOARDS[name]()["panels"] if panel["title"] == title)
    shown = {found: field for field, found in panel["transformations"][-1]["options"]["renameByName"].items()}
    sorts = [each["options"]["sort"] for each in panel["transformations"] if each["id"] == "sortBy"]
    fields = [(shown[each], shown[each].startswith("Value")) for each in order]

    assert sorts == [[{"field": f"order of {field}" if high else field, "desc": high}] for field, high in fields]
    assert panel["options"]["sortBy"] == []


def test_without_exporters_nothing_is_calm(tmp_path: Path) -> None:
    written(tmp_path, [('other{a="b"}', 1.0, int(time.time()) - 60)])
    with prometheus(tmp_path) as server:
        fleet = Grafana(Api(server.url, int(time.time()), SECONDS), DASHBOARDS["fleet"]())
        for title in ("GPUs wasted now", "Out of order", "Nodes not seen", "GPUs"):
            assert fleet.panel(title).number() == int(NO_DATA), title
        gaps = {series["metric"]["summary"] for series in fleet.panel(OUT_OF_ORDER).series}
        assert gaps == {"no data"}
        cost = next(each for each in fleet.dashboard["templating"]["list"] if each["name"] == "cost")
        typed = {"1,5": "1.50", "2.5 €": "2.50", "3": "3.0", "": "NaN", "much": "NaN"}
        assert {text: fleet.options(cost, {"price": text}) for text in typed} == {k: [v] for k, v in typed.items()}


def test_the_power_of_a_node_that_just_stopped_is_not_a_smaller_number(tmp_path: Path) -> None:
    """A rate over the last minutes still has values of the node, and falls with each of them."""
    fleet = one_job()
    (node,) = fleet.nodes
    node.down = 2
    end = made(fleet, tmp_path, rules=True)
    # As Prometheus, whose series end with the first scrape that fails; those of a past do not.
    with prometheus(tmp_path, options=["--query.lookback-delta=30s"]) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        shown = each_node(world, node)
        assert shown.panel("Power now").number() == int(NOT_SEEN)
        assert world.open("fleet").panel("Nodes").by("instance", of=5) == {}
        for panel in ("Power", "Busy"):
            (curve, *_) = (shown.panel(panel).results)[0]
            assert [float(value) for at, value in curve["values"] if at > end - 2 * MINUTE] == []


def test_a_lost_gpu_names_the_job_that_it_hit(tmp_path: Path) -> None:
    """Its processes hold no memory of it any more, and they may have ended; another job holds another GPU."""
    fleet = one_job()
    (node,), (job,) = fleet.nodes, fleet.jobs
    node.uuids.append("GPU-1")
    node.faults["GPU-0"] = "lost"
    job.ended = LOST - 1
    other = DrawnJob(JobId("", "slurm", "", "8"), [(node, "GPU-1")], {"unknown": 0.1})
    fleet.jobs.append(other)
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        opened = world.open("fleet")
        about = ("alertname", "uuid", "shown", "workload_user", "of_workload_job")
        assert ("GpuLost", "GPU-0", "Slurm job 7", "ann", "7") in opened.panel(NOTIFICATIONS).by(*about, of=2)
        owners = opened.panel(OUT_OF_ORDER).by("uuid", "workload_job", "workload_user", of=1)
        assert set(owners) == {("GPU-0", "7", "ann")}
        repair, first = (each_node(world, node).panel(title) for title in (REPAIR, FAULTS))
        assert set(repair.by("advice")) == {(STEPS_OF_LOST,)}
        reboot = "now: ask the owners to end its programs, then systemctl reboot. replace it"
        assert set(first.by("uuid", "summary", "advice")) == {("GPU-0", "lost", reboot)}
        # The repair of the GPU ends the other job, too.
        listed = opened.panel(TRAININGS).by("workload_job", "state", "advice", of=-1)
        save = "save a checkpoint: the repair of GPU 0 ends every program of its node"
        assert ("8", "its node must be rebooted", save) in listed
        for board, title in ((opened, "GPUs wasted, by cause"), (opened_on(world, other), "Where its GPU time goes")):
            causes = {series["metric"].get("cause", "") for series in board.panel(title).series}
            assert BROKEN_GPU in causes, title
        why, to_do = (opened_on(world, other).panel(title) for title in ("Why", "What to do"))
        assert why.by("cause") == {("its node must be rebooted: gpu-0",): 2}
        save = "save a checkpoint: the repair of GPU 0 of gpu-0, which lost, ends every program of its node"
        ((cause, since),) = to_do.by("cause", "advice").items()
        assert cause == ("its node must be rebooted: gpu-0", save)
        assert end - LOST * MINUTE - 2 * MINUTE <= since / 1000 <= end
        ask = "save a checkpoint, stop it, and ask the administrators for the repair, now: systemctl reboot. replace it"
        assert set(opened_on(world, job).panel("What to do").by("cause", "advice")) == {("GPU 0 of gpu-0: lost", ask)}
        owners = each_node(world, node).panel("GPUs").by("uuid", "workload_job", of=-1)
        assert set(owners) == {("GPU-0", "7"), ("GPU-1", "8")}
        gpus = opened_on(world, job).panel("Its GPUs")
        assert gpus.by("uuid", "state") == {("GPU-0", "lost"): 3}
        assert set(opened_on(world, job).panel("Alerts").by("alertname")) == {("GpuLost",)}
        assert set(opened_on(world, other).panel("Its GPUs").by("uuid", "state")) == {("GPU-1", "in use")}


def test_a_gpu_that_is_lost_for_hours_is_one_of_the_only_job_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa.worlds.drawn_fleets.LOST", 2 * SECONDS // MINUTE)
    fleet = one_job()
    (node,), (job,) = fleet.nodes, fleet.jobs
    node.uuids.append("GPU-1")
    node.faults["GPU-1"] = "lost"
    job.places.append((node, "GPU-1"))
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        opened = opened_on(World(fleet, Api(server.url, end, SECONDS)), job)
        assert opened.panel("Its GPUs").by("uuid", "state") == {("GPU-0", "wasted"): 2, ("GPU-1", "lost"): 3}
        assert set(opened.panel("Job").by("workload_job").values()) == {2}


def test_a_dead_node_has_its_last_owner_and_its_last_plan(tmp_path: Path) -> None:
    fleet = one_job()
    (node,), (job,) = fleet.nodes, fleet.jobs
    node.down, node.faults["GPU-0"] = 25, "lost"
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        told = world.open("fleet").panel(NOTIFICATIONS).by("alertname", "shown", "workload_user", of=2)
        assert ("ExporterDown", "Slurm job 7", "ann") in told
        (((plan,), _),) = each_node(world, node).panel(REPAIR).by("advice").items()
        assert plan == "the last plan, for when the node is back: it is not seen for 25 min.\n" + STEPS_OF_LOST.replace(
            ", now,", ","
        )
        for title in ("Steps a second", "Duration of a step"):
            reasons = {series["metric"].get("state") for series in opened_on(world, job).panel(title).results[-1]}
            assert reasons == {"not seen"}, title


def colour(title: str, name: str, column: str, text: str) -> str:
    """Return the colour of a text in a column of a table, as Grafana maps it: the first that matches."""
    panel = next(panel for panel in DASHBOARDS[name]()["panels"] if panel["title"] == title)
    of_column = next(each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == column)
    (rows,) = (each["value"] for each in of_column["properties"] if each["id"] == "mappings")
    plain = {value: found for row in rows if row["type"] == "value" for value, found in row["options"].items()}
    found = [row["options"] for row in rows if row["type"] == "regex"]
    matched = [each["result"] for each in found if re.search(each["pattern"], text)]
    return str((plain.get(text) or matched[0])["color"])


def test_what_a_node_had_has_the_colour_of_a_node_that_is_not_seen() -> None:
    for fault in FAULT_TABLE.values():
        was = f"{LAST}{fault.summary}"
        for title, name, column, text in (
            (OUT_OF_ORDER, "fleet", "Fault", was),
            (FAULTS, "node", "Fault", was),
            ("GPUs", "node", "State", f"not seen for 25 min, {was}"),
            ("Its GPUs", "job", "State", f"not seen for 25 min, {was}"),
            ("What to do", "job", "What", f"GPU 1 of node-1: {was}"),
        ):
            assert colour(title, name, column, text) == "orange", text


def test_trainings_on_a_node_that_is_not_seen_are_critical() -> None:
    unseen = "trainings not seen for 25 min"
    for title, name, column, text in (
        (OUT_OF_ORDER, "fleet", "Fault", unseen),
        ("Nodes", "fleet", "State", f"{unseen}: the node is down, or its exporter"),
        (TRAININGS, "fleet", "Why", "not known: node-1 is not seen for 25 min"),
        ("State", "node", "State", unseen),
        (FAULTS, "node", "Fault", unseen),
        ("Job", "job", "State", "not known: node-1 is not seen for 25 min"),
        ("What to do", "job", "What", "not known: its node is not seen"),
    ):
        assert colour(title, name, column, text) == "red", (title, name)
    assert colour("Nodes", "fleet", "State", "not seen for 25 min: the node is down, or its exporter") == "orange"


def test_nodes_and_jobs_of_one_name_are_never_added(tmp_path: Path) -> None:
    """With Cluster = All, two clusters have a node gpu-0 and a job 7."""
    nodes = [DrawnNode(cluster, "gpu-0", [f"GPU-{cluster}"]) for cluster in ("a", "b")]
    nodes[1].down = 25
    jobs = [
        DrawnJob(JobId(node.cluster, "slurm", "", "7"), [(node, node.uuids[0])], {"data_loading": 0.5})
        for node in nodes
    ]
    fleet = DrawnFleet(15, nodes, jobs, frozenset())
    end = made(fleet, tmp_path, rules=True)
    with prometheus(tmp_path) as server:
        world = World(fleet, Api(server.url, end, SECONDS))
        node, job = world.open("node", instance="gpu-0"), world.open("job", workload="7")
        assert set(node.panel("State").by("cluster", "instance", "state")) == {
            ("a", "gpu-0", "no fault"),
            ("b", "gpu-0", "trainings not seen for 25 min"),
        }
        for title in ("GPUs up", "Out of order", "GPUs wasted", "Power now"):
            assert node.panel(title).number() == int(SEVERAL_NODES), title
        assert set(node.panel("Alerts").by("alertname")) == {("choose a cluster",)}
        assert node.panel("GPUs up").results[1] == []
        for title in ("Load", "GPUs wasted"):
            assert job.panel(title).number() == int(SEVERAL_JOBS), title
        for title in ("Speedup", "Steps/s"):
            assert job.panel(title).series == [], title
        assert set(job.panel("Why").by("cause")) == {("several jobs",)}
        (text,) = {cause for (cause,) in job.panel("What to do").by("cause", of=5)}
        assert text == "several jobs have this name: choose a cluster, a kind or a namespace"
        for each in world.fleet.jobs[:1]:
            assert opened_on(world, each).panel("GPUs wasted").number() == pytest.approx(0.5, abs=0.02)
