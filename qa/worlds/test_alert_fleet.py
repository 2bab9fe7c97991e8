"""Real Prometheus with Alertmanager, the oldest or the current version: how many notifications a job causes.

Two nodes run four ranks of a job of each kind. Beside them are sidecars, containers, trainings without the hook, a
second cluster with the same Slurm job, a drill with that job, and a machine that was bad before the first scrape.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.drawn import draws
from tests.e2e.programs import http, wait_for
from tests.e2e.webhook import webhook

from qa.bench.alerts.jobs import EXPECTED, five_containers, sidecar, slurm_job, two_nodes, without_hook
from qa.worlds.alert_fleet import FAST, PATIENCE, Node, Received, Subject, daemons, judged, servers

pytestmark = [pytest.mark.e2e, pytest.mark.everything, pytest.mark.timeout(240)]

DRILL = "drill"
SETS = {
    "production": FAST.model_copy(update={"threshold": 0.4, "matchers": f'cluster!="{DRILL}"'}),
    "drill": FAST.model_copy(update={"name": DRILL, "matchers": f'cluster="{DRILL}"'}),
}
# Of the scenario `bad-from-start`, after the inhibition of what a worse fault explains.
BAD = {
    "1": ("GpuXidReset", "Xid 119 (GSP RPC timeout)"),
    "2": ("GpuRowRemapFailed", "cannot replace faulty memory"),
    "4": ("GpuNeedsReset", "Xid 48 (Double bit ECC error)"),
}
# The jobs in EXPECTED and four more of their cluster, two of other clusters, and two receivers for each faulty GPU.
SUBJECTS = len(EXPECTED) + 4 + 2 + 2 * len(BAD)


def pod_info(folder: Path, name: str) -> str:
    """Write the downward API volume of a pod of a JobSet; return the flag of its folder."""
    folder.mkdir()
    fields = {"namespace": "ml", "name": name, "uid": name, "labels": 'jobset.sigs.k8s.io/jobset-name="chat"\n'}
    for field, text in fields.items():
        (folder / field).write_text(text)
    return f"--kubernetes.pod-info={folder}"


def fleet(folder: Path) -> dict[str, Node]:
    nodes = {name: Node(scenario, name, "east") for name, scenario in two_nodes(*EXPECTED).items()}
    for number in range(4):
        flag = pod_info(folder / f"pod-info-{number}", f"chat-node-0-{number}-x7k2b")
        nodes[f"sidecar-{number}"] = Node(sidecar()["pod"], f"10.1.0.{number}:10478", "east", (flag,))
    nodes |= {name: Node(scenario, name, "east") for name, scenario in (five_containers() | without_hook()).items()}
    # The same job, and the same name of the node.
    nodes["west"] = Node(slurm_job()["node-1"], "node-1", "west")
    nodes[DRILL] = Node(slurm_job()["node-1"], "node-1", DRILL)
    nodes["bad"] = Node("bad-from-start", "node-3", "east")
    return nodes


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Received]]:
    """Yield the notifications of each version of the server: at a push of one of them."""
    folder = tmp_path_factory.mktemp("fleet")
    nodes = fleet(folder)
    chosen = [servers()[number] for number in draws(1, 2)]
    with contextlib.ExitStack() as stack:
        hook = stack.enter_context(webhook())
        addresses = stack.enter_context(daemons(folder, nodes))
        found = {server.name: Received(server.name, hook) for server in chosen}
        urls = [
            stack.enter_context(judged(folder / server.name, server, nodes, addresses, SETS, hook)) for server in chosen
        ]

        def complete() -> bool:
            return all(len(one.counted()) >= SUBJECTS for one in found.values())

        wait_for(complete, 6 * PATIENCE, "each job is reported")
        # In a few more evaluations a second notification would come.
        seen = [evaluations(url) for url in urls]

        def evaluated() -> bool:
            return all(evaluations(url) >= before + 3 for url, before in zip(urls, seen, strict=True))

        wait_for(evaluated, 2 * PATIENCE, "the rules are evaluated three times more")
        yield found


def evaluations(url: str) -> float:
    """Return how often a server has evaluated the rules of each group, the slowest included."""
    _, page = http(f"{url}/metrics")
    counts = re.findall(rb"^prometheus_rule_group_iterations_total\{.*\} (\S+)$", page, re.MULTILINE)
    return min(map(float, counts))


def jobs(cluster: str, one: Received) -> list[Subject]:
    """Return the jobs of a cluster, once for each notification to the owners."""
    return sorted(
        found
        for (receiver, found), count in one.counted().items()
        if receiver == "owners"
        for _ in range(count)
        if found[0] == cluster
    )


def test_each_job_of_a_cluster_is_one_notification(received: dict[str, Received]) -> None:
    for one in received.values():
        found = jobs("east", one)
        on_one_host = [each for each in found if each[1] in {"container", "launch"}]

        assert [each for each in found if each not in on_one_host] == sorted(
            [("east", kind, namespace, job) for kind, job, namespace in EXPECTED.values()]
            + [("east", "jobset", "ml", "chat")]
        ), one.text()
        # The starving one of five containers; two trainings without the hook, no server, and no display server.
        assert [kind for _, kind, *_ in on_one_host] == ["container", "launch", "launch"], one.text()
        assert len(set(on_one_host)) == 3


def test_the_same_job_of_two_clusters_is_two_notifications(received: dict[str, Received]) -> None:
    for one in received.values():
        kind, job, namespace = EXPECTED["slurm"]

        assert jobs("west", one) == [("west", kind, namespace, job)]


def test_a_drill_reports_its_own_job_only(received: dict[str, Received]) -> None:
    """The rules of production would report it, too, and those of the drill its twin."""
    for one in received.values():
        kind, job, namespace = EXPECTED["slurm"]

        assert jobs(DRILL, one) == [(DRILL, kind, namespace, job)]


def test_no_other_receiver_hears_of_jobs(received: dict[str, Received]) -> None:
    for one in received.values():
        to_others = [
            alert["labels"]
            for receiver, alert in one.notifications()
            if receiver != "owners" and "workload_job" in alert["labels"]
        ]

        assert to_others == [], one.text()
        assert {alert["labels"]["alertname"] for receiver, alert in one.notifications() if receiver == "owners"} == {
            "TrainingLoadLow"
        }


def test_what_was_bad_before_the_first_scrape_is_handed_over_once(received: dict[str, Received]) -> None:
    for one in received.values():
        counted = {key: count for key, count in one.counted().items() if len(key[1]) == 3}
        texts = {
            (alert["labels"]["index"], alert["labels"]["alertname"]): " ".join(alert["annotations"].values())
            for _, alert in one.notifications()
            if "index" in alert["labels"]
        }

        assert counted == {
            (receiver, ("east", "node-3", index)): 1 for index in BAD for receiver in ("drain", "platform")
        }, one.text()
        for index, (name, said) in BAD.items():
            assert said in texts[index, name]
            assert f"GPU {index} (" in texts[index, name]
            assert "on node-3" in texts[index, name]
