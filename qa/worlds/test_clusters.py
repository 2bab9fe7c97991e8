"""Drawn clusters: one training is one job on all nodes, whatever its user is, as far as the sources can know it; a
source that comes late changes a job once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawn import draws, seeds

from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.worlds.clusters import KINDS, draw, final, late, live


@seeds(draws(50, 500))
def test_one_training_is_one_job(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = draw(seed, tmp_path)
    every, running = live(nodes, monkeypatch)
    for node, seen, workloads in zip(nodes, every, running, strict=True):
        truth = {pid: final(node, pod) for pid, pod in node.pods.items()}

        assert {pid: each.jobs[-1] for pid, each in seen.items()} == truth
        for pid, each in seen.items():
            # Names that are there in time make no second job, and what comes late changes it once for each.
            assert len(each.jobs) <= 1 + late(node, node.pods[pid]), (pid, each.jobs)
            assert all(namespace in {"", truth[pid][0]} for namespace, *_ in each.jobs)
            if each.source == "unknown":
                assert truth[pid][1] == "pod"
        # A simulated node reports the sources of its real processes, too.
        simulated = Workloads(Procfs(str(tmp_path / "none")), besides=workloads)
        assert simulated.sources().get("pods") == (node.answers() if node.asks != "off" else None)
        assert simulated.counters()["jobs_changed"] == sum(len(each.jobs) - 1 for each in seen.values())


def test_every_kind_of_owner_is_drawn(tmp_path: Path) -> None:
    drawn = [node for seed in range(60) for node in draw(seed, tmp_path)]
    kinds = {final(node, pod)[1] for node in drawn for pod in node.pods.values()}

    assert kinds >= {*KINDS} - {"indexed", "static", "bare", "daemonset", "workflow", "ranks", "pretender"}
    assert kinds >= {"pod", "declared", "distributed"}
    assert {node.answers() for node in drawn if node.asks != "off"} == {True, False}
