"""A fleet of simulated daemons, and servers of Prometheus with Alertmanager that judge it, each of another version."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.e2e.documents import ROOT
from tests.e2e.programs import daemon, listening, prometheus3, wait_for
from tests.e2e.webhook import Alert, Webhook
from tests.needs import need

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters

PATIENCE = 20
# As the defaults, in seconds instead of minutes.
FAST = Parameters(
    patience=PATIENCE,
    idle_patience=2 * PATIENCE,
    stall_patience=PATIENCE,
    min_job_age=1,
    settle=5,
    keep_firing=10,
    scrape_interval=2,
    evaluation_interval=2,
)


@dataclass(frozen=True)
class Node:
    """A daemon of the fleet: its scenario, the labels that Prometheus adds, and flags."""

    scenario: str
    instance: str
    cluster: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Server:
    """A version of Prometheus and Alertmanager."""

    name: str
    prometheus: str
    alertmanager: str


def servers() -> tuple[Server, Server]:
    """Return the oldest and the current version."""
    return (
        Server("oldest", need("prometheus"), need("prometheus-alertmanager")),
        Server("current", prometheus3("prometheus"), prometheus3("prometheus-alertmanager")),
    )


@contextlib.contextmanager
def daemons(folder: Path, nodes: Mapping[str, Node]) -> Iterator[dict[str, str]]:
    """Run a daemon for each node; yield their addresses by the same names."""
    with contextlib.ExitStack() as stack:
        running = {}
        for name, node in nodes.items():
            (folder / name).mkdir()
            scenario = node.scenario
            if "\n" in scenario:
                # The name of the file is that of the simulated host.
                scenario = str(folder / name / f"{name}.yaml")
                Path(scenario).write_text(f"description: {name}\n{node.scenario}")
            flags = (f"--simulate={scenario}", *node.flags)
            running[name] = stack.enter_context(daemon(folder / name, *flags, ready=False))
        for each in running.values():
            wait_for(each.ready, 60, "the daemon is ready")
        yield {name: each.url.removeprefix("http://") for name, each in running.items()}


@contextlib.contextmanager
def judged(
    folder: Path,
    server: Server,
    nodes: Mapping[str, Node],
    addresses: Mapping[str, str],
    sets: Mapping[str, Parameters],
    hook: Webhook,
) -> Iterator[str]:
    """Run a server with sets of rules; its notifications go to /SERVER/RECEIVER of the webhook. Yield its URL."""
    folder.mkdir()
    example = (ROOT / "deploy" / "prometheus" / "alertmanager.yaml").read_text()
    routes = yaml.safe_load(example.replace("http://alerts.example", f"{hook.url}/{server.name}"))
    for route in (routes["route"], *routes["route"]["routes"]):
        # Each change of a group is a notification, so that a second alert is seen.
        route |= {"group_wait": "1s", "group_interval": "2s"}
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(routes))
    for name, parameters in sets.items():
        (folder / f"{name}.rules.yaml").write_text(rules.as_prometheus(parameters))
    flags = (f"--config.file={folder / 'alertmanager.yaml'}", f"--storage.path={folder / 'am'}")
    with listening(folder / "am.log", server.alertmanager, *flags, "--cluster.listen-address=") as alertmanager:
        targets = [
            {"targets": [addresses[name]], "labels": {"instance": node.instance, "cluster": node.cluster}}
            for name, node in nodes.items()
        ]
        every = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
        tree = {
            "global": every,
            "rule_files": [str(folder / "*.rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.removeprefix("http://")]}]}]},
            "scrape_configs": [{"job_name": "gpugauge", "static_configs": targets}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(tree))
        flags = (f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}")
        with listening(folder / "prometheus.log", server.prometheus, *flags) as url:
            yield url


Subject = tuple[str, ...]  # cluster, kind, namespace, job; of a GPU cluster, instance, index


def subject(alert: Alert) -> Subject:
    """Return what an alert is about."""
    labels = alert["labels"]
    keys = ("instance", "index") if "index" in labels else ("workload_job_kind", "workload_namespace", "workload_job")
    return tuple(labels.get(key, "") for key in ("cluster", *keys))


@dataclass(frozen=True)
class Received:
    """The notifications of firing alerts that one server sent."""

    server: str
    hook: Webhook

    def notifications(self) -> list[tuple[str, Alert]]:
        """Return receiver and alert of each; a notification with two alerts counts as two."""
        return [
            (path.split("/")[2], alert)
            for path, notification in self.hook.notifications
            if path.startswith(f"/{self.server}/")
            for alert in notification["alerts"]
            if alert["status"] == "firing"
        ]

    def counted(self) -> Counter[tuple[str, Subject]]:
        """Return the number of notifications by receiver and subject."""
        return Counter((receiver, subject(alert)) for receiver, alert in self.notifications())

    def text(self) -> str:
        """Return all of them, for the message of a failed test."""
        return json.dumps([[receiver, alert["labels"]] for receiver, alert in self.notifications()], indent=1)
