"""Every alert in Prometheus' rule tester: firing, not firing, resolving, absent series, restarts and gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.artifacts.rules.rule_stories import JOB, QUIET, STORIES, Quiet, Row, Story
from tests.e2e.ruletester import firing, keep_needed, promtool, story_identity, tools_by_turns

pytestmark = pytest.mark.e2e

FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules" / "gpugauge.yaml"
LOW = next(story for story in STORIES if story.alert == "TrainingLoadLow")
by_alert = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)


tool = tools_by_turns()


@by_alert
def test_an_alert_keeps_all_series_that_it_needs(story: Story) -> None:
    groups = rules.groups(story.parameters)["groups"]
    keep_needed(groups, story.alert)
    kept = [rule for group in groups for rule in group["rules"]]

    assert [rule["alert"] for rule in kept if "alert" in rule] == [story.alert]
    assert set(re.findall(r"gpugauge:[\w:]+", str(kept))) == {rule["record"] for rule in kept if "record" in rule}


@by_alert
def test_fires_with_the_identity_and_then_resolves(tool: str, tmp_path: Path, story: Story) -> None:
    expected = [
        firing(story.alert, 60, 1, 1, story_identity(story)),
        firing(story.alert, 150, 30, None, {}),
    ]

    phases = [("good", 20), ("bad", 41), ("good", 90)]
    promtool(tool, tmp_path, story.rows, phases, expected, story.alert, parameters=story.parameters)


@by_alert
def test_restart_and_gap_do_not_resolve(tool: str, tmp_path: Path, story: Story) -> None:
    phases = [("bad", 60), ("restart", 2), ("bad", 30), ("gap", 10), ("bad", 30)]

    expected = [firing(story.alert, 131, 72, 72, story_identity(story))]

    promtool(tool, tmp_path, story.rows, phases, expected, story.alert, parameters=story.parameters)


@by_alert
def test_restart_gap_and_end_of_a_good_series_do_not_fire(tool: str, tmp_path: Path, story: Story) -> None:
    phases = [("good", 60), ("restart", 2), ("good", 30), ("gap", 10), ("good", 30), ("gone", 40)]

    quiet = [firing(story.alert, 170, 171, None, {})]
    promtool(tool, tmp_path, story.rows, phases, quiet, story.alert, parameters=story.parameters)


@by_alert
def test_ended_series_do_not_resolve_at_once(tool: str, tmp_path: Path, story: Story) -> None:
    expected = [firing(story.alert, 70, 10, 10, story_identity(story)), firing(story.alert, 130, 20, None, {})]

    phases = [("bad", 60), ("gone", 71)]
    promtool(tool, tmp_path, story.rows, phases, expected, story.alert, parameters=story.parameters)


@pytest.mark.parametrize("story", [s for s in STORIES if s.lasting], ids=lambda story: story.alert)
def test_a_moment_before_the_end_does_not_fire(tool: str, tmp_path: Path, story: Story) -> None:
    phases = [("good", 40), ("bad", 1), ("gone", 40)]

    quiet = [firing(story.alert, 80, 81, None, {})]
    promtool(tool, tmp_path, story.rows, phases, quiet, story.alert, parameters=story.parameters)


def renamed(row: Row, process: str) -> Row:
    return replace(row, labels={**row.labels, "process": process})


def test_restarted_rank_is_the_same_alert(tool: str, tmp_path: Path) -> None:
    """The only process of the job ends, and another one begins five minutes later with the same losses."""
    old = [replace(row, good=None) for row in LOW.rows]
    rows = [renamed(row, "p9") for row in LOW.rows if row.labels["process"] == "p0"]
    start = Row("training_start_timestamp_seconds", {"process": "p9"}, 75 * 60, 75 * 60)
    rows = [row for row in rows if row.name != start.name] + [start]
    new = [replace(row, bad=None, good=row.bad) for row in rows]

    expected = [firing(LOW.alert, 150, 90, 90, story_identity(LOW))]

    promtool(tool, tmp_path, [*old, *new], [("bad", 70), ("gap", 5), ("good", 76)], expected, LOW.alert)


def test_changed_cause_is_the_same_alert(tool: str, tmp_path: Path) -> None:
    rows = [row for row in LOW.rows if row.labels.get("cause") != "data_loading"]
    labels = {"process": "p0", "cause": "data_loading"}
    first = Row("training_lost_seconds_total", labels, 0.7, 0.05, counter=True)
    then = replace(first, labels={**labels, "cause": "host_bound"}, bad=0.05, good=0.7)

    expected = [firing(LOW.alert, 130, 70, 70, story_identity(LOW))]

    promtool(tool, tmp_path, [*rows, first, then], [("bad", 70), ("good", 61)], expected, LOW.alert)


def test_in_a_sidecar_the_hook_gives_the_job(tool: str, tmp_path: Path) -> None:
    rows = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    hook = Row("torch_process_info", {"process": "p0", **JOB}, 1, 1)
    labels = story_identity(LOW)

    promtool(tool, tmp_path, [*rows, hook], [("bad", 61)], [firing(LOW.alert, 60, 1, 1, labels)], LOW.alert)


def test_a_process_without_a_job_has_no_alert(tool: str, tmp_path: Path) -> None:
    """While its name is awaited, and for good of a display server."""
    rows = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    info = Row("gpu_process_host_info", {"process": "p0", "torch_build": "cuda", "workload_user": "ann"}, 1, 1)

    promtool(tool, tmp_path, [*rows, info], [("bad", 61)], [firing("", 60, 60, None, {})])


def test_a_name_that_comes_late_makes_no_second_alert(tool: str, tmp_path: Path) -> None:
    """The job is empty for 20 minutes of a bad hour, as after a restart of the daemon, and then the same again."""
    rest = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    named = [replace(row, good=None) for row in LOW.rows if row.name == "gpu_process_host_info"]
    empty = Row("gpu_process_host_info", {"process": "p0", "torch_build": "cuda"}, None, 1)
    rows = [*(replace(row, good=row.bad) for row in rest), *named, empty]
    once = {"expr": "count(count by (alertname, workload_job) (ALERTS))", "eval_time": "110m"}

    phases = [("bad", 60), ("good", 20), ("bad", 31)]
    promtool(
        tool,
        tmp_path,
        rows,
        phases,
        [
            {**once, "exp_samples": [{"labels": "{}", "value": 1}]},
            firing("", 110, 40, 40, {"alertname": LOW.alert, **story_identity(LOW)}),
        ],
    )


def test_throttled_fires_with_drivers_that_count_no_seconds(tool: str, tmp_path: Path) -> None:
    story = next(story for story in STORIES if story.alert == "GpuThrottled")
    rows = [Row("gpu_clocks_event_active", row.labels, 1, 0) if "clocks" in row.name else row for row in story.rows]

    promtool(tool, tmp_path, rows, [("bad", 61)], [firing(story.alert, 60, 1, 1, story_identity(story))], story.alert)


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
    """Ann has two of three processes of a job that loses 0.6 of a GPU; Bob loses a quarter of one in a launch."""
    launch = {"workload_job_kind": "launch", "workload_job": "gpu07/fit.py-1"}
    owners = {"p0": {"workload_user": "ann", **JOB}, "p1": {"workload_user": "ann", **JOB}}
    owners |= {"p2": {"workload_user": "bob", **JOB}, "p3": {"workload_user": "bob", **launch}}
    rows = [
        Row("gpu_process_host_info", {"process": process, "torch_build": "cuda", **owner}, 1, 1)
        for process, owner in owners.items()
    ]
    for process, share in {"p0": 0.6, "p3": 0.25}.items():
        lost = {"process": process, "cause": "data_loading"}
        rows.append(Row("training_gpu_held_seconds_total", {"process": process}, 1, 1, counter=True))
        rows.append(Row("training_lost_seconds_total", lost, share, share, counter=True))
    expected = {
        "expr": "round(gpugauge:user_training_lost:gpus, 0.01)",
        "eval_time": "60m",
        "exp_samples": [
            {"labels": '{workload_job_kind="jobset",workload_namespace="ml",workload_user="ann"}', "value": 0.4},
            {"labels": '{workload_job_kind="jobset",workload_namespace="ml",workload_user="bob"}', "value": 0.2},
            {"labels": '{workload_job_kind="launch",workload_user="bob"}', "value": 0.25},
        ],
    }

    promtool(tool, tmp_path, rows, [("bad", 61)], [expected])


def of_clusters(rows: Iterable[Row], *clusters: str) -> list[Row]:
    return [replace(row, labels={**row.labels, "cluster": cluster}) for cluster in clusters for row in rows]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)
def test_two_clusters_with_equal_names_are_not_mixed(tool: str, tmp_path: Path, story: Story) -> None:
    """With the same jobs, GPUs, processes and nodes in both, of which one is bad and the other is good."""
    good = [replace(row, bad=row.good) for row in story.rows]
    rows = [*of_clusters(story.rows, "a"), *of_clusters(good, "b")]
    one = [firing(story.alert, 60, 1, 1, {**story_identity(story), "cluster": "a"})]

    promtool(tool, tmp_path, rows, [("bad", 61)], one, story.alert, parameters=story.parameters)


def test_a_drill_judges_only_its_own_jobs(tool: str, tmp_path: Path) -> None:
    """Both sets of rules are in one Prometheus; the job of the drill is bad, a real one of the same name is good."""
    good = [replace(row, bad=row.good) for row in LOW.rows]
    rows = [*of_clusters(LOW.rows, "drill"), *of_clusters(good, "real")]
    drill = Parameters(name="drill", matchers='cluster="drill"', patience=300, min_job_age=60, settle=60)
    ours = Parameters(matchers='cluster!="drill"')
    expected = [firing("", 60, 1, 1, {"alertname": LOW.alert, "cluster": "drill", **story_identity(LOW)})]
    for name, cluster in (("drill", "drill"), ("gpugauge", "real")):
        query = {"expr": f'group by (cluster) ({{__name__=~"{name}:.*"}})', "eval_time": "60m"}
        expected.append({**query, "exp_samples": [{"labels": f'{{cluster="{cluster}"}}', "value": 1}]})

    promtool(tool, tmp_path, rows, [("bad", 61)], expected, parameters=drill, beside=ours)


# An alert for each cause is an addition that the user chose.
OF_THE_DEFAULT_PACK = [s for s in STORIES if s.alert.startswith("Training") and not s.parameters.per_cause]


@pytest.mark.parametrize("story", OF_THE_DEFAULT_PACK, ids=lambda story: story.alert)
def test_a_job_has_one_alert(tool: str, tmp_path: Path, story: Story) -> None:
    """With every rule of the default pack, a low load in addition, and at every moment of two hours."""
    names = {(row.name, *sorted(row.labels.items())) for row in story.rows}
    low = [row for row in LOW.rows if (row.name, *sorted(row.labels.items())) not in names]
    once = {"expr": "max_over_time(count by (workload_job) (ALERTS{alertstate='firing'})[2h:1m])"}
    one = [{"labels": '{workload_job="llm"}', "value": 1}]

    promtool(
        tool,
        tmp_path,
        [*story.rows, *low],
        [("bad", 121)],
        [{**once, "eval_time": "120m", "exp_samples": one}],
        parameters=story.parameters,
    )


def test_without_any_series_nothing_fires(tool: str, tmp_path: Path) -> None:
    promtool(tool, tmp_path, (), [("gone", 60)], [firing("", 60, 60, None, {})])


@pytest.mark.parametrize("quiet", QUIET, ids=lambda quiet: quiet.name)
def test_nothing_fires_for(tool: str, tmp_path: Path, quiet: Quiet) -> None:
    end = sum(minutes for _, minutes in quiet.phases) - 1

    promtool(tool, tmp_path, quiet.rows, quiet.phases, [firing("", end, end, None, {})])
