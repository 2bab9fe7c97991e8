"""The alerts about faults of GPUs in Prometheus' rule tester: texts, and two exporters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.settings.kinds import RUNBOOK_URL
from tests.artifacts.rules.rule_stories import GPU, STORIES, UUID, Row, Story
from tests.e2e.ruletester import HERE, SECONDS, Case, Phases, annotated, check, of_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

RUNBOOK = Path(__file__).parents[2] / "docs/runbook.md"
BY_NAME = {story.alert: story for story in STORIES}
XID_48 = {"xid": "48", "xid_name": "Double bit ECC error"}
SINCE_THE_FIRST_SCRAPE = "Since 1970-01-01 00:00:00 +0000 UTC. "
WHERE = "GPU 3 (GPU-0) on node-1"


def case(name: str, rows: Iterable[Row], *expected: dict[str, Any], phases: Phases = (("bad", 61),)) -> Case:
    return Case(name, of_rows(rows, phases), expected)


def texts(story: Story, summary: str, description: str, **labels: str) -> dict[str, Any]:
    """Return the expectation of the texts after an hour."""
    link = f"{RUNBOOK_URL}#{story.alert.lower()}"
    return annotated(story, {"summary": summary, "description": description, "runbook_url": link}, labels=labels)


SLURM_JOB = {"workload_job_kind": "slurm", "workload_job": "1000/7", "workload_user": "ann"}


def xid_48(at: float | None) -> Row:
    return Row("gpu_xid_unrepaired_timestamp_seconds", {**UUID, "class": "workflow", **XID_48}, at, None)


def reset_with_pods() -> Case:
    story = BY_NAME["GpuNeedsReset"]
    later = {"xid": "119", "xid_name": "GSP RPC timeout", "class": "reset"}
    pod = {"workload_namespace": "ml", "workload_pod": "train-0"}
    rows = [
        *story.rows,
        xid_48(600),
        Row("gpu_xid_unrepaired_timestamp_seconds", {**UUID, **later}, 660, None),
        Row("gpu_process_info", {"process": "p0", **pod}, 1, 1),
        Row("gpu_process_info", {"process": "p1", **pod, "workload_pod": "train-1"}, 1, 1),
        Row("gpu_process_info", {"process": "p2", **SLURM_JOB}, 1, 1),
        *(Row("gpu_process_memory_used_bytes", {"process": each, **UUID}, 1e9, 1e9) for each in ("p0", "p2")),
        Row("gpu_allocation_info", {**UUID, **pod, "workload_pod": "train-2"}, 1, 1),
    ]
    summary = f"{WHERE} needs a reset: node_reboot"
    description = (
        "The driver requires it, or memory that had errors is replaced at the next reset. First error: Xid 48 (Double "
        "bit ECC error). Drain the machine, stop gpugauge, which has the driver open, reset the GPU, and start "
        "gpugauge; if the reset fails, reboot. "
        f"{SINCE_THE_FIRST_SCRAPE}Used by pod ml/train-0. Used by pod ml/train-2. Used by Slurm job 7 of user ann."
    )

    expected = texts(story, summary, description, **XID_48)
    return case("the text of a reset has the first Xid and the pods", rows, expected)


def known_xid() -> Case:
    story = BY_NAME["GpuXidNode"]
    summary = f"{WHERE} had Xid 79 (GPU has fallen off the bus)"
    description = (
        "Inspect the machine: the GPU is off the bus, or power or firmware failed. The alert fires until the GPU is "
        "repaired. Since 1970-01-01 00:10:00 +0000 UTC."
    )
    named = {**UUID, "class": "node", "xid": "79"}
    rows = [*story.rows, Row("gpu_xid_unrepaired_timestamp_seconds", named, 600, None)]

    return case("the text of an Xid has code, name and time", rows, texts(story, summary, description))


def unknown_xid() -> Case:
    story = BY_NAME["GpuXidOther"]
    rows = [
        replace(row, labels={**row.labels, "xid": "999", "xid_name": ""}) if "xid" in row.labels else row
        for row in story.rows
    ]
    story = replace(story, identity={**GPU, "xid": "999"})
    description = "NVIDIA's catalogue of Xid errors may say what to do. It was in the last 15m. "
    description += SINCE_THE_FIRST_SCRAPE.strip()

    return case("the text of an unknown Xid has its code", rows, texts(story, f"{WHERE} had Xid 999", description))


def contained_error() -> Case:
    """An error of the memory in the class of the errors of programs; the runbook says the same."""
    story = BY_NAME["GpuXidApplication"]
    labels = {"xid": "94", "xid_name": "Contained memory error"}
    rows = [replace(row, labels={**row.labels, **labels}) if "xid" in row.labels else row for row in story.rows]
    story = replace(story, identity={**GPU, **labels})
    to_do = "restart it, and reset the GPU when no program uses it"
    description = f"Faulty memory ended the program: {to_do}. It was in the last 15m. {SINCE_THE_FIRST_SCRAPE.strip()}"
    section = " ".join(RUNBOOK.read_text(encoding="utf-8").partition("### GpuXidApplication")[2].split())
    assert f"Xid 94 is faulty memory, not the program: {to_do}" in section.partition(" ### ")[0]

    summary = f"{WHERE} had Xid 94 (Contained memory error)"
    return case("the text of a contained error of the memory", rows, texts(story, summary, description))


def lost_gpu() -> Case:
    story = BY_NAME["GpuLost"]
    rows = [
        *story.rows,
        xid_48(600),
        Row("gpu_down_reason", {**UUID, "reason": "gpu_is_lost"}, 1, None),
        Row("gpu_process_info", {"process": "p0", **SLURM_JOB}, None, 1),
        Row("gpu_process_memory_used_bytes", {"process": "p0", **UUID}, None, 1e9),
    ]
    description = (
        "It is lost, its driver calls hang, or the driver does not list it. Reason: gpu_is_lost. First error: Xid 48 "
        "(Double bit ECC error). Drain and reboot the machine; if the GPU is lost again, have it replaced. "
        "Since 1970-01-01 00:22:00 +0000 UTC. Used by Slurm job 7 of user ann."
    )

    expected = texts(story, f"{WHERE} does not answer", description, **XID_48)
    phases: Phases = (("good", 20), ("bad", 41))
    return case("a lost GPU has its Xid, its reason and the job that used it", rows, expected, phases=phases)


def two_exporters() -> Case:
    """As while a pod of the exporter replaces another one; the second one knows the GPU by another index."""
    story = BY_NAME["GpuRowRemapFailed"]
    second = [
        replace(row, labels={**row.labels, "pod": "b"} | ({"index": "4"} if "index" in row.labels else {}))
        for row in story.rows
    ]
    expected = {
        "expr": f'count(ALERTS{{alertstate="firing",cluster="{HERE}"}})',
        "eval_time": "60m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }

    return case("two exporters of a node are one alert", [*story.rows, *second], expected)


def test_faults(tmp_path: Path) -> None:
    check(
        tmp_path,
        [reset_with_pods(), known_xid(), unknown_xid(), contained_error(), lost_gpu(), two_exporters()],
        each_version=True,
    )
