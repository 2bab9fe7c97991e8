"""The alerts about faults of GPUs in Prometheus' rule tester: texts, first scrapes, clusters, idle links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.pack import as_prometheus
from gpugauge.settings.kinds import RUNBOOK_URL
from tests.artifacts.rules.rule_stories import GPU, STORIES, UUID, Row, Story
from tests.e2e.programs import prometheus3
from tests.e2e.ruletester import firing, promtool, verify
from tests.needs import need

pytestmark = pytest.mark.e2e

HEALTH = [s for s in STORIES if s.identity.get("uuid") and s.alert != "GpuLost"]
BY_NAME = {story.alert: story for story in STORIES}
XID_48 = {"xid": "48", "xid_name": "Double bit ECC error"}
WHERE = "GPU 3 (GPU-0) on node-1"


@pytest.fixture(params=["oldest", "current"], scope="module")
def tool(request: pytest.FixtureRequest) -> str:
    return need("promtool") if request.param == "oldest" else prometheus3("promtool")


def identity(story: Story, **more: str) -> dict[str, str]:
    return {"severity": story.severity, **story.identity, **more}


def annotated(story: Story, minute: int, summary: str, description: str, **labels: str) -> dict[str, Any]:
    annotations = {
        "summary": summary,
        "description": description,
        "runbook_url": f"{RUNBOOK_URL}#{story.alert.lower()}",
    }
    alert = {"exp_labels": identity(story, **labels), "exp_annotations": annotations}
    return {"eval_time": f"{minute}m", "alertname": story.alert, "exp_alerts": [alert]}


@pytest.mark.parametrize("story", HEALTH, ids=lambda story: story.alert)
def test_a_fault_from_before_the_first_scrape_fires_and_stays(tool: str, tmp_path: Path, story: Story) -> None:
    """No counter rises: the daemon is new to Prometheus, and the GPU was bad before."""
    expected = [firing(story.alert, 119, 100, 100, identity(story))]

    promtool(tool, tmp_path, story.rows, [("gap", 3), ("bad", 117)], expected, story.alert)


@pytest.mark.parametrize("story", HEALTH, ids=lambda story: story.alert)
def test_the_label_of_the_cluster_survives(tool: str, tmp_path: Path, story: Story) -> None:
    """Two clusters with the same GPU, node and uuid; one of them is bad."""
    bad = [replace(row, labels={**row.labels, "cluster": "a"}) for row in story.rows]
    good = [replace(row, labels={**row.labels, "cluster": "b"}, bad=row.good) for row in story.rows]
    expected = [firing(story.alert, 60, 1, 1, identity(story, cluster="a"))]

    promtool(tool, tmp_path, [*bad, *good], [("bad", 61)], expected, story.alert)


def xid_48(at: float | None) -> Row:
    return Row("gpu_xid_unrepaired_timestamp_seconds", {**UUID, "class": "workflow", **XID_48}, at, None)


def test_the_text_of_a_reset_has_the_first_xid_and_the_pods(tool: str, tmp_path: Path) -> None:
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

    expected = [annotated(story, 60, summary, description, **XID_48)]
    promtool(tool, tmp_path, rows, [("bad", 61)], [], story.alert, expected)


def test_the_text_of_an_xid_has_code_and_name(tool: str, tmp_path: Path) -> None:
    story = BY_NAME["GpuXidNode"]
    summary = f"{WHERE} had Xid 79 (GPU has fallen off the bus)"
    description = (
        "Inspect the machine: the GPU is off the bus, or power or firmware failed. Until the GPU is reset or repaired."
    )

    promtool(tool, tmp_path, story.rows, [("bad", 61)], [], story.alert, [annotated(story, 60, summary, description)])


def test_the_text_of_an_unknown_xid_has_its_code(tool: str, tmp_path: Path) -> None:
    story = BY_NAME["GpuXidOther"]
    rows = [replace(row, labels={**UUID, "class": "other", "xid": "999"}) if row.clock else row for row in story.rows]
    story = replace(story, identity={**GPU, "xid": "999"})
    description = "NVIDIA's catalogue of Xid errors may say what to do. In the last 15m."

    expected = [annotated(story, 60, f"{WHERE} had Xid 999", description)]
    promtool(tool, tmp_path, rows, [("bad", 61)], [], story.alert, expected)


def test_a_lost_gpu_has_its_xid_and_reason(tool: str, tmp_path: Path) -> None:
    story = BY_NAME["GpuLost"]
    rows = [*story.rows, xid_48(600), Row("gpu_down_reason", {**UUID, "reason": "gpu_is_lost"}, 1, None)]
    description = (
        "It is lost, its driver calls hang, or the driver does not list it. Reason: gpu_is_lost. First error: Xid 48 "
        "(Double bit ECC error). Drain the machine, and reset the GPU or reboot."
    )

    expected = [annotated(story, 60, f"{WHERE} does not answer", description, **XID_48)]
    promtool(tool, tmp_path, rows, [("bad", 61)], [], story.alert, expected)


@pytest.mark.parametrize(
    ("metric", "reason"),
    [("gpu_remapped_rows_pending", "row_remap_pending"), ("gpu_retired_pages_pending", "page_retirement_pending")],
)
def test_pending_memory_needs_a_reset(tool: str, tmp_path: Path, metric: str, reason: str) -> None:
    story = BY_NAME["GpuNeedsReset"]
    rows = [*(row for row in story.rows if row.name == "gpu_info"), Row(metric, UUID, 1, 0)]

    expected = [firing(story.alert, 60, 1, 1, identity(story, reason=reason)), firing(story.alert, 90, 5, None, {})]
    promtool(tool, tmp_path, rows, [("good", 20), ("bad", 41), ("good", 30)], expected, story.alert)


def test_a_recovery_action_and_a_pending_row_are_one_alert(tool: str, tmp_path: Path) -> None:
    story = BY_NAME["GpuNeedsReset"]
    rows = [*story.rows, Row("gpu_remapped_rows_pending", UUID, 1, 0)]

    expected = [firing(story.alert, 60, 30, 30, identity(story))]
    promtool(tool, tmp_path, rows, [("bad", 61)], expected, story.alert)


def test_a_narrow_link_stays_known_while_the_gpu_is_idle(tool: str, tmp_path: Path) -> None:
    story = BY_NAME["GpuPcieDegraded"]
    rows = [replace(row, bad=0.0) if row.name == "gpu_busy_seconds_total" else row for row in story.rows]
    always = [replace(row, good=8) if row.labels.get("when") == "current" else row for row in rows]

    # Narrow for 40 minutes under load, then for an hour while idle.
    under_load = [firing(story.alert, 100, 60, 60, identity(story))]
    promtool(tool, tmp_path, always, [("good", 40), ("bad", 61)], under_load, story.alert)
    never = [firing(story.alert, 60, 60, None, {})]
    promtool(tool, tmp_path, always, [("bad", 61)], never, story.alert)


@pytest.mark.parametrize(
    ("width", "busy", "firing_at", "quiet_at"),
    [
        # Narrow under load for an hour, repaired, wide under load, then idle with a link that sleeps. The alert keeps
        # firing for a while after the repair; that is no evidence of a narrow link.
        ("8x59 _x5 16x5 8x530", "0+50x59 _x5 0+50x5 250x530", (58,), (130, 590)),
        # The load ends soon after the link has become narrow, as where the job fails because of it.
        ("16x60 8x340", "0+60x63 3780x337", range(70, 210, 10), (60,)),
    ],
    ids=["repaired", "load ends"],
)
def test_a_link_is_known_to_be_narrow_until_it_was_wide(
    width: str, busy: str, firing_at: Sequence[int], quiet_at: Sequence[int], tool: str, tmp_path: Path
) -> None:
    labels = 'instance="node-1",uuid="GPU-0"'
    series = {
        f'gpu_info{{{labels},index="3"}}': "1x600",
        f'gpu_pcie_width{{{labels},when="max"}}': "16x600",
        f'gpu_pcie_width{{{labels},when="current"}}': width,
        f'gpu_busy_seconds_total{{{labels},engine="gpu"}}': busy,
    }
    query = 'count(ALERTS{alertname="GpuPcieDegraded",alertstate="firing"})'
    expected = [(at, [{"labels": "{}", "value": 1}]) for at in firing_at] + [(at, []) for at in quiet_at]
    rules = tmp_path / "rules.yaml"
    rules.write_text(as_prometheus(Parameters()))
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{at}m", "exp_samples": found} for at, found in expected],
    }
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": [str(rules)], "tests": [test]}))

    verify(tool, tmp_path / "test.yaml")


@pytest.mark.parametrize(("rate", "count"), [(150.0, 1), (50.0, None)])
def test_very_many_corrected_nvlink_errors_fire(tool: str, tmp_path: Path, rate: float, count: int | None) -> None:
    story = BY_NAME["GpuNvlinkErrors"]
    rows = [
        *(row for row in story.rows if row.name == "gpu_info"),
        Row("gpu_nvlink_errors_total", {**UUID, "kind": "crc_flit"}, rate, 0, counter=True),
    ]

    promtool(tool, tmp_path, rows, [("bad", 61)], [firing(story.alert, 60, 1, count, identity(story))], story.alert)


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("gpu_recovery_action", {"action": "none"}, 1),
        ("gpu_ecc_errors_total", {"type": "uncorrected", "scope": "aggregate"}, 7),
        ("gpu_ecc_errors_total", {"type": "corrected", "scope": "volatile"}, 7),
        ("gpu_nvlink_errors_total", {"kind": "crc_flit"}, 7),
        ("gpu_remapped_rows", {"cause": "uncorrectable"}, 7),
        ("gpu_temperature_celsius", {"sensor": "gpu"}, 87),
        ("gpu_temperature_celsius", {"sensor": "memory"}, 95),
    ],
)
def test_harmless_values_fire_nothing(
    tool: str, tmp_path: Path, name: str, labels: dict[str, str], value: float
) -> None:
    counter = name.endswith("_total")
    rows = [
        *(row for row in BY_NAME["GpuHot"].rows if row.name != "gpu_temperature_celsius"),
        Row(name, {**UUID, **labels}, value, value, counter=counter, level=counter),
    ]

    promtool(tool, tmp_path, rows, [("bad", 61)], [firing("", 60, 60, None, {})])


def test_two_exporters_of_a_node_are_one_alert(tool: str, tmp_path: Path) -> None:
    """As while a pod of the exporter replaces another one; the second one knows the GPU by another index."""
    story = BY_NAME["GpuRowRemapFailed"]
    second = [
        replace(row, labels={**row.labels, "pod": "b"} | ({"index": "4"} if "index" in row.labels else {}))
        for row in story.rows
    ]

    expected = {
        "expr": 'count(ALERTS{alertstate="firing"})',
        "eval_time": "60m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    promtool(tool, tmp_path, [*story.rows, *second], [("bad", 61)], [expected], story.alert)
