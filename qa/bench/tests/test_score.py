import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from qa.bench.alerts import drawn, kept_back, tuned
from qa.bench.alerts.__main__ import GROUPS
from qa.bench.alerts.__main__ import main as command
from qa.bench.alerts.replay import Run, _firing, _runs
from qa.bench.alerts.report import failures, summary
from qa.bench.alerts.score import GRACE, Rules, Score, count
from qa.bench.alerts.story import SHIPPED, Device, Expectation, Story, StoryError, notation, read, read_all, write

PLANNED = {story.name: story for story in (*tuned.STORIES, *kept_back.STORIES, *drawn.STORIES)}
JOB = {"workload_job": "7"}


def expect(**changes: Any) -> Expectation:
    plain = {"labels": JOB, "kind": "load", "alerts": ["Low|Lower"], "since": 10, "until": 60}
    return Expectation.model_validate({**plain, **changes})


def story(*expectations: Expectation) -> Story:
    devices = {"GPU-0": Device(instance="node-1", jobs=("7",)), "GPU-1": Device(instance="node-1")}
    return Story(name="s", description="w", minutes=90, devices=devices, expectations=expectations, series={})


def counted(made: Story, *runs: Run, names_jobs: bool = True) -> Score:
    result = Score()
    count(result, made, runs, names_jobs=names_jobs)
    return result


def fires(alert: str, begin: int, labels: dict[str, str] | None = None) -> Run:
    return Run(alert, labels or {**JOB, "workload_kind": "slurm"}, begin, 80)


def test_expected_alert_counts_with_its_delay() -> None:
    found = counted(story(expect()), fires("Low", 25), fires("Lower", 23))

    assert (found.fired, found.missed, found.wrong, found.delays) == (1, [], [], [13])
    assert (found.precision, found.recall, found.delay) == (1.0, 1.0, 13)


def test_two_alerts_about_a_job_at_a_time_count_as_twice() -> None:
    other = {**JOB, "workload_namespace": "b"}
    found = counted(story(expect()), fires("Low", 25), fires("Lower", 30), fires("Low", 40, other))

    assert failures(found) == ["two alerts at a time in s: workload_job=7 workload_kind=slurm"]
    assert counted(story(expect()), fires("Low", 25), fires("TrainingLimitedByTransfer", 26)).twice == set()
    assert counted(story(expect()), Run("Low", JOB, 25, 30), Run("Lower", JOB, 31, 40)).twice == set()


def test_missing_alert_is_missed() -> None:
    found = counted(story(expect()))

    assert (found.fired, found.recall, found.precision) == (0, 0.0, None)
    assert failures(found) == ["not reported in s: workload_job=7"]


@pytest.mark.parametrize(
    "run",
    [
        fires("Low", 9),
        fires("Low", 60 + GRACE + 1),
        fires("Else", 30),
        fires("Low", 30, {"workload_job": "8"}),
    ],
    ids=["too early", "too late", "another alert", "another job"],
)
def test_unexpected_alert_is_a_false_alarm(run: Run) -> None:
    found = counted(story(expect()), run)

    assert (found.fired, found.false_alarms, found.precision) == (0, 1, 0.0)


def test_late_alert_within_its_window_is_neither_fired_nor_wrong() -> None:
    found = counted(story(expect()), fires("Low", 60 + GRACE))

    assert (found.fired, found.wrong) == (0, [])


def test_false_alarms_count_once_for_each_identity() -> None:
    found = counted(story(), fires("Low", 1), fires("Lower", 2), fires("Low", 3, {"uuid": "GPU-0"}))

    assert found.false_alarms == 2


def test_alert_that_is_not_required_does_not_count() -> None:
    made = story(expect(required=False))

    assert (counted(made).recall, counted(made, fires("Low", 30)).precision) == (None, None)


@pytest.mark.parametrize(("cause_alert", "named"), [("Low", 1), ("Lower", 0)])
def test_the_alert_of_the_cause_is_counted(cause_alert: str, named: int) -> None:
    found = counted(story(expect(cause_alert=cause_alert)), fires("Low", 30))

    assert (found.named, found.nameable) == (named, 1)


@pytest.mark.parametrize(
    ("labels", "fired"),
    [
        ({"instance": "node-1", "uuid": "GPU-0"}, 1),
        ({"instance": "node-1"}, 1),
        ({"instance": "node-1", "uuid": "GPU-1"}, 0),
        ({"instance": "node-2"}, 0),
    ],
)
def test_naive_alert_counts_for_every_job_on_its_gpu_or_machine(labels: dict[str, str], fired: int) -> None:
    found = counted(story(expect()), fires("Naive", 30, labels), names_jobs=False)

    assert (found.fired, found.false_alarms) == (fired, 1 - fired)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 1.0, 1.0], "1+0x2"),
        ([0.0, 1.5, 3.0, 3.0, 3.0], "0+1.5x2 3+0x1"),
        ([5.0, 3.0, 1.0], "5-2x2"),
        ([1.0, None, None, None, 2.0], "1 stale _x2 2"),
        ([None, None, 4.0], "_x2 4"),
        ([1.0, 7.0], "1 7"),
    ],
)
def test_notation(values: list[float | None], text: str) -> None:
    assert notation(values) == text


PRINTED = """
  FAILED:
    expr: "ALERTS{alertstate=\\"firing\\"}", time: 59m,
        exp: nil
        got: {__name__="ALERTS", alertname="A", alertstate="firing", job="a\\"}, b", severity="info"} 1E+00
    expr: "ALERTS{alertstate=\\"firing\\"}", time: 1h,
        exp: nil
        got: {__name__="ALERTS", alertname="A", alertstate="firing", job="a\\"}, b", severity="info"} 1E+00,
{__name__="ALERTS", alertname="B", alertstate="firing", uuid="u"} 1E+00
    expr: "ALERTS{alertstate=\\"firing\\"}", time: 1h5m,
        exp: nil
        got: {__name__="ALERTS", alertname="B", alertstate="firing", uuid="u"} 1E+00
"""


def test_output_of_promtool_is_parsed() -> None:
    assert _runs(dict(_firing(PRINTED))) == [
        Run("A", {"job": 'a\\"}, b'}, 59, 60),
        Run("B", {"uuid": "u"}, 60, 60),
        Run("B", {"uuid": "u"}, 65, 65),
    ]


def test_story_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = story(expect())

    assert read(write(made, tmp_path)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minutes": 0}, "minutes: "),
        ({"colour": "red"}, "colour: "),
        (
            {"expectations": [{"labels": JOB, "kind": "load", "alerts": ["A"], "since": 5, "until": 5}]},
            "until must come after",
        ),
    ],
)
def test_bad_story_names_file_and_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(json.loads(story().model_dump_json()) | change))

    with pytest.raises(StoryError, match=rf"bad\.json: .*{re.escape(message)}"):
        read(path)


def test_broken_file_and_empty_folder_raise(tmp_path: Path) -> None:
    with pytest.raises(StoryError, match="there is no story in it"):
        read_all(tmp_path)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b"{}")[:-9])
    with pytest.raises(StoryError, match="cannot be read"):
        read_all(tmp_path)


def test_shipped_stories_are_those_that_are_planned() -> None:
    shipped = {made.name: made for made in read_all(SHIPPED)}

    assert shipped.keys() == PLANNED.keys()
    for name, made in shipped.items():
        planned = PLANNED[name]
        assert (made.description, made.minutes, len(made.expectations)) == (
            planned.description,
            planned.minutes,
            len(planned.expectations),
        ), name
        assert planned in GROUPS[made.group], name


def test_enough_stories_and_enough_kept_back() -> None:
    assert len(PLANNED) >= 120
    assert len(drawn.STORIES) >= 60
    assert len(kept_back.STORIES) >= 12
    assert sum(not planned.expectations for planned in PLANNED.values()) >= 15


def test_every_expected_alert_exists() -> None:
    names = {alert.name for alert in rules.alerts(Parameters())}

    for planned in PLANNED.values():
        for wanted in planned.expectations:
            for pattern in wanted.alerts:
                assert any(re.fullmatch(pattern, name) for name in names), (planned.name, pattern)


def test_summary_has_a_row_for_each_group() -> None:
    made = story(expect())
    scores = {"all": counted(made, fires("Low", 30)), "tuned": counted(made)}

    lines = summary([made], [(Rules("ours", {}, names_jobs=True), scores)]).splitlines()

    assert len(lines) == 4
    assert lines[2].startswith("| ours | all (1) | 1 of 1 | 0 | 0 | 1.00 | 1.00 | 1 of 1 | 20 | 20 |")
    assert lines[3].startswith("| ours | tuned (1) | 0 of 1 | 0 | 0 | - | 0.00 |")


def test_command_names_the_missing_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["--promtool", str(tmp_path / "none")])

    assert ended.value.code == 2
    assert "--promtool sets its path" in capsys.readouterr().err


def test_document_counts_every_story() -> None:
    document = (Path(__file__).parents[3] / "docs/proof/alerts.md").read_text()

    assert f"gpugauge | all ({len(PLANNED)})" in document
