"""Every alert in Prometheus' rule tester: firing, not firing, resolving, absent series, restarts and gaps."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpugauge.artifacts.rules.options import Parameters
from tests.artifacts.rules.rule_stories import QUIET, STORIES, Quiet, Row, Story
from tests.e2e.programs import prometheus3
from tests.e2e.ruletester import firing, promtool
from tests.needs import need

pytestmark = pytest.mark.e2e

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "gpugauge.yaml"
LOW = next(story for story in STORIES if story.alert == "TrainingLoadVeryLow")
by_alert = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)


@pytest.fixture(params=["oldest", "current"], scope="module")
def tool(request: pytest.FixtureRequest) -> str:
    """Return promtool: that of the machine (Debian's 2.42 or newer), and that of the current Prometheus."""
    return need("promtool") if request.param == "oldest" else prometheus3("promtool")


def identity(story: Story) -> dict[str, str]:
    return {"severity": story.severity, **story.identity}


def test_the_file_is_valid(tool: str) -> None:
    subprocess.run([tool, "check", "rules", str(FILE)], check=True, capture_output=True)


@by_alert
def test_fires_with_the_identity_and_then_resolves(tool: str, tmp_path: Path, story: Story) -> None:
    expected = [
        firing(story.alert, 60, 1, 1, identity(story)),
        firing(story.alert, 150, 30, None, {}),
    ]

    promtool(tool, tmp_path, story.rows, [("good", 20), ("bad", 41), ("good", 90)], expected, story.alert)


@by_alert
def test_restart_and_gap_do_not_resolve(tool: str, tmp_path: Path, story: Story) -> None:
    phases = [("bad", 60), ("restart", 2), ("bad", 30), ("gap", 10), ("bad", 30)]

    expected = [firing(story.alert, 131, 72, 72, identity(story))]

    promtool(tool, tmp_path, story.rows, phases, expected, story.alert)


@by_alert
def test_restart_gap_and_end_of_a_good_series_do_not_fire(tool: str, tmp_path: Path, story: Story) -> None:
    phases = [("good", 60), ("restart", 2), ("good", 30), ("gap", 10), ("good", 30), ("gone", 40)]

    promtool(tool, tmp_path, story.rows, phases, [firing(story.alert, 170, 171, None, {})], story.alert)


@by_alert
def test_ended_series_do_not_resolve_at_once(tool: str, tmp_path: Path, story: Story) -> None:
    expected = [firing(story.alert, 70, 10, 10, identity(story)), firing(story.alert, 130, 20, None, {})]

    promtool(tool, tmp_path, story.rows, [("bad", 60), ("gone", 71)], expected, story.alert)


@pytest.mark.parametrize("story", [s for s in STORIES if s.lasting], ids=lambda story: story.alert)
def test_a_moment_before_the_end_does_not_fire(tool: str, tmp_path: Path, story: Story) -> None:
    phases = [("good", 40), ("bad", 1), ("gone", 40)]

    promtool(tool, tmp_path, story.rows, phases, [firing(story.alert, 80, 81, None, {})], story.alert)


def renamed(row: Row, process: str) -> Row:
    return replace(row, labels={**row.labels, "process": process})


def test_restarted_rank_is_the_same_alert(tool: str, tmp_path: Path) -> None:
    """The only process of the job ends, and another one begins five minutes later with the same losses."""
    old = [replace(row, good=None) for row in LOW.rows]
    rows = [renamed(row, "p9") for row in LOW.rows if row.labels["process"] == "p0"]
    start = Row("training_start_timestamp_seconds", {"process": "p9"}, 75 * 60, 75 * 60)
    rows = [row for row in rows if row.name != start.name] + [start]
    new = [replace(row, bad=None, good=row.bad) for row in rows]

    expected = [firing(LOW.alert, 150, 90, 90, identity(LOW))]

    promtool(tool, tmp_path, [*old, *new], [("bad", 70), ("gap", 5), ("good", 76)], expected, LOW.alert)


def test_changed_cause_is_the_same_alert(tool: str, tmp_path: Path) -> None:
    rows = [row for row in LOW.rows if row.labels.get("cause") != "data_loading"]
    labels = {"process": "p0", "cause": "data_loading"}
    first = Row("training_lost_seconds_total", labels, 0.7, 0.05, counter=True)
    then = replace(first, labels={**labels, "cause": "host_bound"}, bad=0.05, good=0.7)

    expected = [firing(LOW.alert, 130, 70, 70, identity(LOW))]

    promtool(tool, tmp_path, [*rows, first, then], [("bad", 70), ("good", 61)], expected, LOW.alert)


def test_without_proc_the_run_is_the_job(tool: str, tmp_path: Path) -> None:
    rows = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    hook = Row("torch_process_info", {"process": "p0", "run_id": "wandb:abc"}, 1, 1)
    labels = {"severity": "warning", "workload_kind": "run", "workload_job_id": "wandb:abc"}

    promtool(tool, tmp_path, [*rows, hook], [("bad", 61)], [firing(LOW.alert, 60, 1, 1, labels)], LOW.alert)


def test_without_a_job_the_user_is_the_identity(tool: str, tmp_path: Path) -> None:
    rows = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    info = Row("gpu_process_host_info", {"process": "p0", "workload_kind": "user", "workload_user": "ann"}, 1, 1)
    labels = {"severity": "warning", "workload_kind": "user", "workload_user": "ann"}

    promtool(tool, tmp_path, [*rows, info], [("bad", 61)], [firing(LOW.alert, 60, 1, 1, labels)], LOW.alert)


def test_annotations_have_job_numbers_and_causes(tool: str, tmp_path: Path) -> None:
    annotations = {
        "summary": "Training pod ml/uid-0 uses 25% of its GPU time",
        "description": "Mean over 15m, below 50%. Lost to: data_loading 70%; unknown 5%; Programs: trainer-0 fit.py;",
        "runbook_url": "docs/runbook.md#trainingloadverylow",
    }
    annotated = {
        "eval_time": "60m",
        "alertname": LOW.alert,
        "exp_alerts": [{"exp_labels": identity(LOW), "exp_annotations": annotations}],
    }

    named = {"workload_pod": "trainer-0", "workload_command": "fit.py"}
    rows = [replace(row, labels={**row.labels, **named}) if "info" in row.name else row for row in LOW.rows]

    promtool(tool, tmp_path, rows, [("bad", 61)], [], LOW.alert, [annotated])


def test_annotations_of_a_straggler_have_its_node(tool: str, tmp_path: Path) -> None:
    story = next(story for story in STORIES if story.alert == "TrainingStraggler")
    annotations = {
        "summary": "A rank of training pod ml/uid-0 works 2 times as long as the median rank",
        "description": "Slowest: rank 3 on node-2 works 90% of the time; the median rank 45%, over 15m. "
        "Programs:  fit.py;",
        "runbook_url": "docs/runbook.md#trainingstraggler",
    }
    annotated = {
        "eval_time": "60m",
        "alertname": story.alert,
        "exp_alerts": [{"exp_labels": identity(story), "exp_annotations": annotations}],
    }

    named = {"workload_command": "fit.py"}
    rows = [replace(row, labels={**row.labels, **named}) if "host_info" in row.name else row for row in story.rows]

    promtool(tool, tmp_path, rows, [("bad", 61)], [], story.alert, [annotated])


def test_throttled_fires_with_drivers_that_count_no_seconds(tool: str, tmp_path: Path) -> None:
    story = next(story for story in STORIES if story.alert == "GpuThrottled")
    rows = [Row("gpu_clocks_event_active", row.labels, 1, 0) if "clocks" in row.name else row for row in story.rows]

    promtool(tool, tmp_path, rows, [("bad", 61)], [firing(story.alert, 60, 1, 1, identity(story))], story.alert)


def test_ranks_of_two_runs_are_not_compared(tool: str, tmp_path: Path) -> None:
    story = next(story for story in STORIES if story.alert == "TrainingStraggler")
    rows = [
        replace(row, labels={**row.labels, "run_id": "other"})
        if row.name == "torch_process_info" and row.labels["process"] == "p3"
        else row
        for row in story.rows
    ]

    promtool(tool, tmp_path, rows, [("bad", 90)], [firing("", 89, 89, None, {})])


def test_losses_of_a_job_are_divided_among_its_users(tool: str, tmp_path: Path) -> None:
    """Ann has two of three processes of a job that loses 0.6 of a GPU; Bob loses a quarter of one without a job."""
    job = {"workload_namespace": "ml", "workload_kind": "pod", "workload_job_id": "uid-0"}
    owners = {"p0": {"workload_user": "ann", **job}, "p1": {"workload_user": "ann", **job}}
    owners |= {"p2": {"workload_user": "bob", **job}, "p3": {"workload_user": "bob", "workload_kind": "user"}}
    rows = [Row("gpu_process_host_info", {"process": process, **owner}, 1, 1) for process, owner in owners.items()]
    for process, share in {"p0": 0.6, "p3": 0.25}.items():
        lost = {"process": process, "cause": "data_loading"}
        rows.append(Row("training_gpu_held_seconds_total", {"process": process}, 1, 1, counter=True))
        rows.append(Row("training_lost_seconds_total", lost, share, share, counter=True))
    expected = {
        "expr": "round(gpugauge:user_training_lost:gpus, 0.01)",
        "eval_time": "60m",
        "exp_samples": [
            {"labels": '{workload_kind="pod",workload_namespace="ml",workload_user="ann"}', "value": 0.4},
            {"labels": '{workload_kind="pod",workload_namespace="ml",workload_user="bob"}', "value": 0.2},
            {"labels": '{workload_kind="user",workload_user="bob"}', "value": 0.25},
        ],
    }

    promtool(tool, tmp_path, rows, [("bad", 61)], [expected])


LABELLED = Parameters(training_matchers='workload_namespace="ml"')


@pytest.mark.parametrize(("parameters", "count"), [(LABELLED, 1), (Parameters(), None)])
def test_load_without_the_hook_is_judged_where_the_matchers_select_it(
    tool: str, tmp_path: Path, parameters: Parameters, count: int | None
) -> None:
    """A process without the hook whose GPU is idle for most of the time."""
    rows = [
        *(row for row in LOW.rows if row.name == "gpu_process_host_info"),
        Row("gpu_process_start_timestamp_seconds", {"process": "p0"}, -7200, None),
        Row("training_state", {"process": "p0", "state": "unknown"}, 1, None),
        Row("training_state", {"process": "p0", "state": "training"}, 0, None),
        Row("training_seconds_total", {"process": "p0", "state": "unknown"}, 1, None, counter=True),
        Row("training_gpu_held_seconds_total", {"process": "p0"}, 1, None, counter=True),
        Row("training_lost_seconds_total", {"process": "p0", "cause": "unknown"}, 0.7, None, counter=True),
    ]

    expected = [firing(LOW.alert, 60, 1, count, identity(LOW))]

    promtool(tool, tmp_path, rows, [("bad", 61)], expected, LOW.alert, parameters=parameters)


def test_annotations_have_the_node_of_a_device(tool: str, tmp_path: Path) -> None:
    lost = next(story for story in STORIES if story.alert == "GpuLost")
    annotations = {
        "summary": "GPU GPU-0 does not answer",
        "description": "On node-1: down. It is lost, its driver calls hang, or the driver does not list it.",
        "runbook_url": "docs/runbook.md#gpulost",
    }
    annotated = {
        "eval_time": "60m",
        "alertname": lost.alert,
        "exp_alerts": [{"exp_labels": identity(lost), "exp_annotations": annotations}],
    }

    promtool(tool, tmp_path, lost.rows, [("bad", 61)], [], lost.alert, [annotated])


def test_without_any_series_nothing_fires(tool: str, tmp_path: Path) -> None:
    promtool(tool, tmp_path, (), [("gone", 60)], [firing("", 60, 60, None, {})])


@pytest.mark.parametrize("quiet", QUIET, ids=lambda quiet: quiet.name)
def test_nothing_fires_for(tool: str, tmp_path: Path, quiet: Quiet) -> None:
    end = sum(minutes for _, minutes in quiet.phases) - 1

    promtool(tool, tmp_path, quiet.rows, quiet.phases, [firing("", end, end, None, {})])
