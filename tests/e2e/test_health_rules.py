"""The alerts about faults of GPUs in Prometheus' rule tester: texts, first scrapes, clusters, idle links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.settings.kinds import RUNBOOK_URL
from tests.artifacts.rules.rule_stories import GPU, STORIES, UUID, Row, Story
from tests.e2e.ruletester import HERE, SECONDS, Case, Phases, annotated, check, firing, of_rows, story_identity

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

BY_NAME = {story.alert: story for story in STORIES}
XID_48 = {"xid": "48", "xid_name": "Double bit ECC error"}
WHERE = "GPU 3 (GPU-0) on node-1"


def case(name: str, rows: Iterable[Row], *expected: dict[str, Any], phases: Phases = (("bad", 61),)) -> Case:
    return Case(name, of_rows(rows, phases), expected)


def texts(story: Story, summary: str, description: str, **labels: str) -> dict[str, Any]:
    """Return the expectation of the texts after an hour."""
    link = f"{RUNBOOK_URL}#{story.alert.lower()}"
    return annotated(story, {"summary": summary, "description": description, "runbook_url": link}, labels=labels)


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
        Row("gpu_process_memory_used_bytes", {"process": "p0", **UUID}, 1e9, 1e9),
        Row("gpu_allocation_info", {**UUID, **pod, "workload_pod": "train-2"}, 1, 1),
    ]
    summary = f"{WHERE} needs a reset: node_reboot"
    description = (
        "The driver requires it, or memory that had errors is replaced at the next reset. First error: Xid 48 (Double "
        "bit ECC error). End the processes on the GPU and reset it, or reboot the machine. Used by pod ml/train-0. "
        "Used by pod ml/train-2."
    )

    expected = texts(story, summary, description, **XID_48)
    return case("the text of a reset has the first Xid and the pods", rows, expected)


def known_xid() -> Case:
    story = BY_NAME["GpuXidNode"]
    summary = f"{WHERE} had Xid 79 (GPU has fallen off the bus)"
    description = (
        "Inspect the machine: the GPU is off the bus, or power or firmware failed. Until the GPU is reset or repaired."
    )

    return case("the text of an Xid has code and name", story.rows, texts(story, summary, description))


def unknown_xid() -> Case:
    story = BY_NAME["GpuXidOther"]
    rows = [replace(row, labels={**UUID, "class": "other", "xid": "999"}) if row.clock else row for row in story.rows]
    story = replace(story, identity={**GPU, "xid": "999"})
    description = "NVIDIA's catalogue of Xid errors may say what to do. In the last 15m."

    return case("the text of an unknown Xid has its code", rows, texts(story, f"{WHERE} had Xid 999", description))


def lost_gpu() -> Case:
    story = BY_NAME["GpuLost"]
    rows = [*story.rows, xid_48(600), Row("gpu_down_reason", {**UUID, "reason": "gpu_is_lost"}, 1, None)]
    description = (
        "It is lost, its driver calls hang, or the driver does not list it. Reason: gpu_is_lost. First error: Xid 48 "
        "(Double bit ECC error). Drain the machine, and reset the GPU or reboot."
    )

    expected = texts(story, f"{WHERE} does not answer", description, **XID_48)
    return case("a lost GPU has its Xid and reason", rows, expected)


def test_texts(tmp_path: Path) -> None:
    check(tmp_path, [reset_with_pods(), known_xid(), unknown_xid(), lost_gpu()], each_version=True)


def pending_memory(metric: str, reason: str) -> Case:
    story = BY_NAME["GpuNeedsReset"]
    rows = [*(row for row in story.rows if row.name == "gpu_info"), Row(metric, UUID, 1, 0)]

    fires = firing(story.alert, 60, 1, 1, {**story_identity(story), "reason": reason})
    phases = (("good", 20), ("bad", 41), ("good", 30))
    return case(f"{metric} needs a reset", rows, fires, firing(story.alert, 90, 5, None, {}), phases=phases)


def action_and_pending_row() -> Case:
    story = BY_NAME["GpuNeedsReset"]
    rows = [*story.rows, Row("gpu_remapped_rows_pending", UUID, 1, 0)]

    expected = firing(story.alert, 60, 30, 30, story_identity(story))
    return case("a recovery action and a pending row are one alert", rows, expected)


def narrow_links() -> Iterator[Case]:
    story = BY_NAME["GpuPcieDegraded"]
    rows = [replace(row, bad=0.0) if row.name == "gpu_busy_seconds_total" else row for row in story.rows]
    always = [replace(row, good=8) if row.labels.get("when") == "current" else row for row in rows]

    # Narrow for 40 minutes under load, then for an hour while idle.
    under_load = firing(story.alert, 100, 60, 60, story_identity(story))
    yield case("a narrow link stays known", always, under_load, phases=(("good", 40), ("bad", 61)))
    yield case("an idle link is not known to be narrow", always, firing(story.alert, 60, 60, None, {}))
    # Narrow under load for an hour, repaired, wide under load, then idle with a link that sleeps. The alert keeps
    # firing for a while after the repair; that is no evidence of a narrow link.
    busy = "0+50x59 _x5 0+50x5 250x530"
    yield link("a link is repaired", "8x59 _x5 16x5 8x530", busy, firing_at=(58,), quiet_at=(130, 590))
    # The load ends soon after the link has become narrow, as where the job fails because of it.
    at = range(70, 210, 10)
    yield link("the load of a link ends", "16x60 8x340", "0+60x63 3780x337", firing_at=at, quiet_at=(60,))


def link(name: str, width: str, busy: str, *, firing_at: Sequence[int], quiet_at: Sequence[int]) -> Case:
    labels = {"instance": "node-1", "uuid": "GPU-0"}
    series = [
        ("gpu_info", {**labels, "index": "3"}, "1x600"),
        ("gpu_pcie_width", {**labels, "when": "max"}, "16x600"),
        ("gpu_pcie_width", {**labels, "when": "current"}, width),
        ("gpu_busy_seconds_total", {**labels, "engine": "gpu"}, busy),
    ]
    query = f'count(ALERTS{{alertname="GpuPcieDegraded",alertstate="firing",cluster="{HERE}"}})'
    counts = [(at, [{"labels": "{}", "value": 1}]) for at in firing_at] + [(at, []) for at in quiet_at]
    return Case(name, series, [{"expr": query, "eval_time": f"{at}m", "exp_samples": found} for at, found in counts])


HARMLESS: tuple[tuple[str, Mapping[str, str], float], ...] = (
    ("gpu_recovery_action", {"action": "none"}, 1),
    ("gpu_ecc_errors_total", {"type": "uncorrected", "scope": "aggregate"}, 7),
    ("gpu_ecc_errors_total", {"type": "corrected", "scope": "volatile"}, 7),
    ("gpu_nvlink_errors_total", {"kind": "crc_flit"}, 7),
    ("gpu_remapped_rows", {"cause": "uncorrectable"}, 7),
    ("gpu_temperature_celsius", {"sensor": "gpu"}, 87),
    ("gpu_temperature_celsius", {"sensor": "memory"}, 95),
)


def harmless(name: str, labels: Mapping[str, str], value: float) -> Case:
    counter = name.endswith("_total")
    rows = [
        *(row for row in BY_NAME["GpuHot"].rows if row.name != "gpu_temperature_celsius"),
        Row(name, {**UUID, **labels}, value, value, counter=counter, level=counter),
    ]

    return case(f"nothing fires for {name} {' '.join(labels.values())}", rows, firing("", 60, 60, None, {}))


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
    cases = [
        pending_memory("gpu_remapped_rows_pending", "row_remap_pending"),
        pending_memory("gpu_retired_pages_pending", "page_retirement_pending"),
        *(action_and_pending_row(), *narrow_links(), two_exporters()),
        *(harmless(*each) for each in HARMLESS),
    ]

    check(tmp_path, cases)
