"""Every alert in Prometheus' rule tester: firing, not firing, resolving, absent series, restarts and gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugauge.artifacts.rules.options import Parameters
from tests.artifacts.rules.rule_stories import DEFAULT, JOB, QUIET, STORIES, Row, Story, ranks
from tests.drawn import draws
from tests.e2e.ruletester import HERE, SECONDS, Case, Phases, check, firing, of_rows, story_identity

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]

LOW = next(story for story in STORIES if story.alert == "TrainingLoadLow")


def lives(story: Story) -> dict[str, tuple[Phases, list[dict[str, Any]]]]:
    """Return the lives of the story's series by what they show, and what is expected of each."""
    alert, identity = story.alert, story_identity(story)
    found: dict[str, tuple[Phases, list[dict[str, Any]]]] = {
        "fires with its identity and then resolves": (
            [("good", 20), ("bad", 41), ("good", 105)],
            [firing(alert, 60, 1, 1, identity), firing(alert, 165, 30, None, {})],
        ),
        "keeps firing over a restart and a gap": (
            [("bad", 60), ("restart", 2), ("bad", 30), ("gap", 10), ("bad", 30)],
            [firing(alert, 131, 72, 72, identity)],
        ),
        "is quiet over a restart, a gap and the end of a good series": (
            [("good", 60), ("restart", 2), ("good", 30), ("gap", 10), ("good", 30), ("gone", 40)],
            [firing(alert, 170, 171, None, {})],
        ),
        "does not resolve at once when its series end": (
            [("bad", 60), ("gone", 71)],
            [firing(alert, 70, 10, 10, identity), firing(alert, 130, 20, None, {})],
        ),
    }
    if story.lasting:
        moment = [("good", 40), ("bad", 1), ("gone", 40)]
        found["is quiet about a moment before the end"] = moment, [firing(alert, 80, 81, None, {})]
    if story.identity.get("uuid") and alert != "GpuLost":
        # No counter rises: the daemon is new to Prometheus, and the GPU was bad before.
        before = [("gap", 3), ("bad", 117)]
        found["fires about what was before the first scrape"] = before, [firing(alert, 119, 100, 100, identity)]
    return found


def test_the_lives_of_every_alert(tmp_path: Path) -> None:
    """Each life is a cluster, so that jobs, GPUs, processes and nodes of the same names are bad in one and good in
    another. A push has a sixth of the alerts, the next day others.
    """
    cases = [
        Case(f"{story.alert} {life}", of_rows(story.rows, phases), expected, story.parameters)
        for story in (STORIES[place] for place in draws(len(STORIES) // 6, len(STORIES)))
        for life, (phases, expected) in lives(story).items()
    ]

    check(tmp_path, cases)


def low(
    name: str,
    rows: Iterable[Row],
    phases: Phases,
    expected: list[dict[str, Any]],
    parameters: Parameters = DEFAULT,
    beside: Parameters | None = None,
) -> Case:
    return Case(name, of_rows(rows, phases), expected, parameters, beside)


def renamed(row: Row, process: str) -> Row:
    return replace(row, labels={**row.labels, "process": process})


def restarted_rank() -> Case:
    """The only process of the job ends, and another one begins five minutes later with the same losses."""
    old = [replace(row, good=None) for row in LOW.rows]
    rows = [renamed(row, "p9") for row in LOW.rows if row.labels["process"] == "p0"]
    start = Row("training_start_timestamp_seconds", {"process": "p9"}, 75 * 60, 75 * 60)
    rows = [row for row in rows if row.name != start.name] + [start]
    new = [replace(row, bad=None, good=row.bad) for row in rows]
    phases = [("bad", 70), ("gap", 5), ("good", 76)]

    return low(
        "a restarted rank is the same alert",
        [*old, *new],
        phases,
        [firing(LOW.alert, 150, 90, 90, story_identity(LOW))],
    )


def changed_cause() -> Case:
    rows = [row for row in LOW.rows if row.labels.get("cause") != "data_loading"]
    labels = {"process": "p0", "cause": "data_loading"}
    first = Row("training_lost_seconds_total", labels, 0.7, 0.05, counter=True)
    then = replace(first, labels={**labels, "cause": "host_bound"}, bad=0.05, good=0.7)

    return low(
        "a changed cause is the same alert",
        [*rows, first, then],
        [("bad", 70), ("good", 61)],
        [firing(LOW.alert, 130, 70, 70, story_identity(LOW))],
    )


def sidecar() -> Case:
    rows = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    hook = Row("torch_process_info", {"process": "p0", **JOB}, 1, 1)

    return low(
        "in a sidecar the hook gives the job",
        [*rows, hook],
        [("bad", 61)],
        [firing(LOW.alert, 60, 1, 1, story_identity(LOW))],
    )


def without_a_job() -> Case:
    """While its name is awaited, and for good of a display server."""
    rows = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    info = Row("gpu_process_host_info", {"process": "p0", "torch_build": "cuda", "workload_user": "ann"}, 1, 1)

    return low("a process without a job has no alert", [*rows, info], [("bad", 61)], [firing("", 60, 60, None, {})])


def late_name() -> Case:
    """The job is empty for 20 minutes of a bad hour, as after a restart of the daemon, and then the same again."""
    rest = [row for row in LOW.rows if row.name != "gpu_process_host_info"]
    named = [replace(row, good=None) for row in LOW.rows if row.name == "gpu_process_host_info"]
    empty = Row("gpu_process_host_info", {"process": "p0", "torch_build": "cuda"}, None, 1)
    rows = [*(replace(row, good=row.bad) for row in rest), *named, empty]
    once = {"expr": f'count(count by (alertname, workload_job) (ALERTS{{cluster="{HERE}"}}))', "eval_time": "110m"}

    return low(
        "a name that comes late makes no second alert",
        rows,
        [("bad", 60), ("good", 20), ("bad", 31)],
        [
            {**once, "exp_samples": [{"labels": "{}", "value": 1}]},
            firing("", 110, 40, 40, {"alertname": LOW.alert, **story_identity(LOW)}),
        ],
    )


def two_runs() -> Case:
    rows = [
        replace(row, labels={**row.labels, "run_id": "other"})
        if row.name == "torch_process_info" and row.labels["process"] == "p3"
        else row
        for row in ranks(2.0)
    ]

    return low("ranks of two runs are not compared", rows, [("bad", 90)], [firing("", 89, 89, None, {})])


def losses_by_user() -> Case:
    """Ann has two of three processes of a job that loses 0.6 of a GPU; Bob loses a quarter of one in a launch. Two
    servers have scraped everything.
    """
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
    rows += [replace(row, labels={**row.labels, "replica": "b"}) for row in rows]
    here = f'cluster="{HERE}",'
    expected = {
        "expr": f'round(gpugauge:user_training_lost:gpus{{cluster="{HERE}"}}, 0.01)',
        "eval_time": "60m",
        "exp_samples": [
            {
                "labels": f'{{{here}workload_job_kind="jobset",workload_namespace="ml",workload_user="ann"}}',
                "value": 0.4,
            },
            {
                "labels": f'{{{here}workload_job_kind="jobset",workload_namespace="ml",workload_user="bob"}}',
                "value": 0.2,
            },
            {"labels": f'{{{here}workload_job_kind="launch",workload_user="bob"}}', "value": 0.25},
        ],
    }

    return low("losses of a job are divided among its users", rows, [("bad", 61)], [expected])


def drill() -> Case:
    """Both sets of rules are in one Prometheus; the job of the drill is bad, a real one of the same name is good."""
    good = [replace(row, bad=row.good) for row in LOW.rows]
    rows = [
        replace(row, labels={**row.labels, "cluster": cluster})
        for cluster, of_cluster in (("drill", LOW.rows), ("real", good))
        for row in of_cluster
    ]
    own = Parameters(name="drill", matchers='cluster="drill"', patience=300, min_job_age=60, settle=60)
    expected = [firing("", 60, 1, 1, {"alertname": LOW.alert, "cluster": "drill", **story_identity(LOW)})]
    expected.append(firing("", 60, 60, None, {"cluster": "real"}))
    for name, cluster in (("drill", "drill"), ("gpugauge", "real")):
        query = {"expr": f'group by (cluster) ({{__name__=~"{name}:.*"}})', "eval_time": "60m"}
        expected.append({**query, "exp_samples": [{"labels": f'{{cluster="{cluster}"}}', "value": 1}]})

    ours = Parameters(matchers='cluster!="drill"')
    return low("a drill judges only its own jobs", rows, [("bad", 61)], expected, own, ours)


def two_problems(story: Story, number: int) -> Case:
    """A problem and a low load in addition, at every moment of two hours."""
    names = {(row.name, *sorted(row.labels.items())) for row in story.rows}
    more = [row for row in LOW.rows if (row.name, *sorted(row.labels.items())) not in names]
    firing_here = f"ALERTS{{alertstate='firing',cluster='{HERE}'}}"
    once = {
        "expr": f"max_over_time(count by (workload_job) ({firing_here})[2h:1m])",
        "eval_time": "120m",
        "exp_samples": [{"labels": '{workload_job="llm"}', "value": 1}],
    }

    return low(
        f"a job has one alert, with {story.alert} {number}",
        [*story.rows, *more],
        [("bad", 121)],
        [once],
        story.parameters,
    )


def quiet() -> Iterable[Case]:
    yield low("nothing fires without any series", (), [], [firing("", 60, 60, None, {})])
    for each in QUIET:
        end = sum(minutes for _, minutes in each.phases) - 1
        yield low(f"nothing fires for {each.name}", each.rows, each.phases, [firing("", end, end, None, {})])


def test_jobs(tmp_path: Path) -> None:
    # An alert for each cause is an addition that the user chose.
    problems = [story for story in STORIES if story.alert.startswith("Training") and not story.parameters.per_cause]
    cases = [
        *(restarted_rank(), changed_cause(), sidecar(), without_a_job(), late_name(), two_runs()),
        *(losses_by_user(), drill()),
        *(two_problems(problems[place], place) for place in draws(3, len(problems))),
        *quiet(),
    ]

    check(tmp_path, cases)
