"""Drawn clusters: one training is one job on all nodes, whatever its user is, as far as the sources can know it; a
source that comes late changes a job once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawn import draws, seeds

from qa.worlds.clusters import draw, final, late, live


@seeds(draws(100, 500))
def test_one_training_is_one_job(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = draw(seed, tmp_path)
    every, changed = live(nodes, monkeypatch)
    for node, seen, changes in zip(nodes, every, changed, strict=True):
        truth = {pid: final(node, pod) for pid, pod in node.pods.items()}

        assert {pid: each.jobs[-1] for pid, each in seen.items()} == truth
        for pid, each in seen.items():
            # Names that are there in time make no second job, and what comes late changes it once for each.
            assert len(each.jobs) <= 1 + late(node, node.pods[pid]), (pid, each.jobs)
            assert all(namespace in {"", truth[pid][0]} for namespace, *_ in each.jobs)
            if each.source == "unknown":
                assert truth[pid][1] == "pod"
        assert changes == sum(len(each.jobs) - 1 for each in seen.values())
