"""Real Prometheus servers that have the series of an exporter several times, by federation, remote write of two
replicas and a second scrape job: the sums and alerts are those of the server that scrapes it once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.drawn import draws
from tests.e2e.programs import Prometheus, listening, prometheus3, wait_for
from tests.needs import need

from gpugauge.artifacts.rules import pack as rules
from qa.bench.alerts.jobs import slurm_job
from qa.worlds.alert_fleet import FAST, PATIENCE, Node, daemons

pytestmark = [pytest.mark.e2e, pytest.mark.everything, pytest.mark.timeout(300)]

NODES = {"low": Node(slurm_job()["node-1"], "node-1", "east"), "bad": Node("bad-from-start", "node-3", "east")}
EXPECTED = {"TrainingLoadLow", "GpuXidReset", "GpuRowRemapFailed", "GpuNeedsReset"}
SUMS = (
    *("gpugauge:job_training_held:gpus", "gpugauge:job_training_lost:gpus", "gpugauge:user_training_lost:gpus"),
    *("gpugauge:job_programs:processes", "gpugauge:job_training_now:processes"),
)


def scraped(addresses: Mapping[str, str], job: str) -> dict[str, Any]:
    """Return a scrape job for the daemons."""
    targets = [
        {"targets": [addresses[name]], "labels": {"instance": node.instance, "cluster": node.cluster}}
        for name, node in NODES.items()
    ]
    return {"job_name": job, "static_configs": targets}


@contextlib.contextmanager
def server(
    folder: Path, name: str, *jobs: Any, judges: bool = True, flag: str = "", **more: Any
) -> Iterator[Prometheus]:
    """Run a server with the rules, or without them."""
    program = (need("prometheus"), prometheus3("prometheus"))[draws(1, 2)[0]]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "2s"}
    tree = {"global": {**every, "external_labels": {"replica": name}}, "scrape_configs": [*jobs], **more}
    if judges:
        (folder / "rules.yaml").write_text(rules.as_prometheus(FAST))
        tree["rule_files"] = [str(folder / "rules.yaml")]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    flags = (f"--config.file={folder / f'{name}.yaml'}", f"--storage.tsdb.path={folder / name}", *filter(None, [flag]))
    with listening(folder / f"{name}.log", program, *flags) as url:
        yield Prometheus(url)


Labels = tuple[tuple[str, str], ...]


def alerts(one: Prometheus) -> Counter[Labels]:
    """Return the firing alerts by their labels."""
    return Counter(tuple(sorted(each["metric"].items())) for each in one.query('ALERTS{alertstate="firing"}'))


def names(one: Prometheus) -> set[str]:
    return {dict(labels)["alertname"] for labels in alerts(one)}


def sums(one: Prometheus) -> dict[Labels, float]:
    """Return the values of the sums by their labels."""
    found = [each for name in SUMS for each in one.query(name)]
    return {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in found}


def test_series_from_several_sources_count_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        addresses = stack.enter_context(daemons(tmp_path, NODES))
        scrape = scraped(addresses, "gpugauge")
        once = stack.enter_context(server(tmp_path, "once", scrape))
        federated = {
            "job_name": "federate",
            "honor_labels": True,
            "metrics_path": "/federate",
            "params": {"match[]": ['{job=~".*gpugauge.*"}']},
            "static_configs": [{"targets": [once.url.removeprefix("http://")]}],
        }
        above = stack.enter_context(server(tmp_path, "above", federated))
        twice = stack.enter_context(server(tmp_path, "twice", scrape, federated, scraped(addresses, "gpugauge-b")))
        receiver = "--web.enable-remote-write-receiver"
        central = stack.enter_context(server(tmp_path, "central", flag=receiver))
        write = [{"url": f"{central.url}/api/v1/write"}]
        for replica in ("a", "b"):
            stack.enter_context(server(tmp_path, replica, scrape, judges=False, remote_write=write))
        servers = {"federation": above, "three sources": twice, "remote write of two replicas": central}
        wait_for(lambda: names(once) >= EXPECTED, 6 * PATIENCE, "the alerts fire")
        for name, each in servers.items():
            wait_for(partial(_same, each, once), 4 * PATIENCE, f"{name}: the same alerts fire")
        assert {dict(labels)["__name__"] for labels in sums(once)} == {*SUMS}
        for name, each in servers.items():
            # The means still move, and no two servers evaluate at the same moment.
            wait_for(partial(_agree, each, once), PATIENCE, f"{name}: the same sums")


def _agree(one: Prometheus, other: Prometheus) -> bool:
    found, expected = sums(one), sums(other)
    return found.keys() == expected.keys() and all(abs(found[key] / expected[key] - 1) <= 0.2 for key in found)


def _same(one: Prometheus, other: Prometheus) -> bool:
    return alerts(one) == alerts(other)
