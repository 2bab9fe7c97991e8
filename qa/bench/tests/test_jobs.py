"""The jobs of simulated machines, followed from /proc to the metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from qa.bench.alerts.jobs import EXPECTED, desktop, five_containers, two_nodes
from qa.bench.alerts.record import Machine, Planned

INFOS = ("gpu_process_info", "gpu_process_host_info", "torch_process_info")
Identity = tuple[str, str, str]
_NOTHING = ("", "", "")


def exported(machines: Mapping[str, str], folder: Path, seconds: int = 90) -> tuple[dict[str, set[Identity]], set[str]]:
    """Return the jobs of each metric on all machines at any time, and the processes with a state."""
    found: defaultdict[str, set[Identity]] = defaultdict(set)
    judged: set[str] = set()
    for instance in machines:
        (folder / instance).mkdir()
        machine = Machine(instance, Planned("jobs", "jobs", machines), folder / instance)
        for machine.now in range(0, seconds, 5):
            for section in machine.tick().sections:
                for family in section.families:
                    labelled = [dict(zip(family.metric.labels, labels, strict=True)) for labels, _ in family.samples]
                    if family.metric.name in INFOS:
                        found[family.metric.name] |= {_identity(labels) for labels in labelled}
                    if family.metric.name == "training_state":
                        judged |= {labels["process"] for labels in labelled}
    return found, judged


def _identity(labels: Mapping[str, str]) -> Identity:
    job = labels["workload_job"]
    return labels["workload_job_kind"], job, labels["workload_namespace"] if job else ""


@pytest.mark.parametrize("kind", EXPECTED)
def test_four_ranks_on_two_nodes_are_one_job(kind: str, tmp_path: Path) -> None:
    found, judged = exported(two_nodes(kind), tmp_path)

    # The same in all metrics; it may be missing at first, and is never another one.
    assert {name: jobs - {_NOTHING} for name, jobs in found.items()} == {name: {EXPECTED[kind]} for name in INFOS}
    assert len(judged) == 4


def test_five_containers_are_five_jobs(tmp_path: Path) -> None:
    found, _ = exported(five_containers(), tmp_path)

    assert found["gpu_process_info"] == found["gpu_process_host_info"]
    assert len(found["gpu_process_info"] - {_NOTHING}) == 5
    assert {kind for kind, *_ in found["gpu_process_info"] - {_NOTHING}} == {"container"}


def test_a_display_server_is_no_job(tmp_path: Path) -> None:
    found, judged = exported(desktop(), tmp_path)

    assert {kind for kind, *_ in found["gpu_process_info"]} == {"", "launch"}
    assert len(found["gpu_process_info"] - {_NOTHING}) == 1
    assert len(judged) == 1
