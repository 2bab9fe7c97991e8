import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench.alerts import kept_back, tuned
from bench.alerts.__main__ import main as command
from bench.alerts.replay import Run, _firing, _runs
from bench.alerts.report import failures, summary
from bench.alerts.score import GRACE, Rules, Score, count
from bench.alerts.story import SHIPPED, Device, Story, StoryError, Tell, notation, read, read_all, write

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters

PLANNED = {story.name: story for story in (*tuned.STORIES, *kept_back.STORIES)}
JOB = {"workload_job_id": "7"}


def tell(**changes: Any) -> Tell:
    plain = {"who": JOB, "kind": "load", "alerts": ["Low|Lower"], "since": 10, "until": 60}
    return Tell.model_validate({**plain, **changes})


def story(*tells: Tell) -> Story:
    devices = {"GPU-0": Device(instance="node-1", jobs=("7",)), "GPU-1": Device(instance="node-1")}
    return Story(name="s", what="w", minutes=90, devices=devices, tells=tells, series={})


def counted(made: Story, *runs: Run, names_jobs: bool = True) -> Score:
    result = Score()
    count(result, made, runs, names_jobs=names_jobs)
    return result


def about(alert: str, begin: int, labels: dict[str, str] | None = None) -> Run:
    return Run(alert, labels or {**JOB, "workload_kind": "slurm"}, begin, 80)


def test_right_alert_is_told_and_its_delay_counts() -> None:
    found = counted(story(tell()), about("Low", 25), about("Lower", 23))

    assert (found.told, found.missed, found.wrong, found.delays) == (1, [], [], [13])
    assert (found.precision, found.recall, found.delay) == (1.0, 1.0, 13)


def test_silence_misses() -> None:
    found = counted(story(tell()))

    assert (found.told, found.recall, found.precision) == (0, 0.0, None)
    assert failures(found) == ["not told in s: workload_job_id=7"]


@pytest.mark.parametrize(
    "run",
    [
        about("Low", 9),
        about("Low", 60 + GRACE + 1),
        about("Else", 30),
        about("Low", 30, {"workload_job_id": "8"}),
    ],
    ids=["too early", "too late", "another alert", "another job"],
)
def test_what_nobody_asked_for_is_wrong(run: Run) -> None:
    found = counted(story(tell()), run)

    assert (found.told, found.false_alarms, found.precision) == (0, 1, 0.0)


def test_late_but_within_its_window_is_neither_told_nor_wrong() -> None:
    found = counted(story(tell()), about("Low", 60 + GRACE))

    assert (found.told, found.wrong) == (0, [])


def test_false_alarms_count_once_for_each_identity() -> None:
    found = counted(story(), about("Low", 1), about("Lower", 2), about("Low", 3, {"uuid": "GPU-0"}))

    assert found.false_alarms == 2


def test_what_may_be_told_counts_neither_way() -> None:
    made = story(tell(required=False))

    assert (counted(made).recall, counted(made, about("Low", 30)).precision) == (None, None)


@pytest.mark.parametrize(("best", "named"), [("Low", 1), ("Lower", 0)])
def test_the_alert_of_the_cause_is_counted(best: str, named: int) -> None:
    found = counted(story(tell(best=best)), about("Low", 30))

    assert (found.named, found.nameable) == (named, 1)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"instance": "node-1", "uuid": "GPU-0"}, 1),
        ({"instance": "node-1"}, 1),
        ({"instance": "node-1", "uuid": "GPU-1"}, 0),
        ({"instance": "node-2"}, 0),
    ],
)
def test_naive_rules_tell_of_every_job_on_what_they_name(labels: dict[str, str], told: int) -> None:
    found = counted(story(tell()), about("Naive", 30, labels), names_jobs=False)

    assert (found.told, found.false_alarms) == (told, 1 - told)


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


def test_what_promtool_prints_is_read() -> None:
    assert _runs(dict(_firing(PRINTED))) == [
        Run("A", {"job": 'a\\"}, b'}, 59, 60),
        Run("B", {"uuid": "u"}, 60, 60),
        Run("B", {"uuid": "u"}, 65, 65),
    ]


def test_story_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = story(tell())

    assert read(write(made, tmp_path)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minutes": 0}, "minutes: "),
        ({"colour": "red"}, "colour: "),
        ({"tells": [{"who": JOB, "kind": "load", "alerts": ["A"], "since": 5, "until": 5}]}, "until must come after"),
    ],
)
def test_bad_story_names_file_and_key(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(json.loads(story().model_dump_json()) | change))

    with pytest.raises(StoryError, match=rf"bad\.json: .*{re.escape(message)}"):
        read(path)


def test_broken_file_and_empty_folder_are_told(tmp_path: Path) -> None:
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
        assert (made.what, made.minutes, len(made.tells)) == (planned.what, planned.minutes, len(planned.tells)), name
        assert made.group == ("tuned" if planned in tuned.STORIES else "kept back"), name


def test_enough_stories_and_enough_kept_back() -> None:
    assert len(PLANNED) >= 40
    assert len(kept_back.STORIES) >= 12
    assert sum(not planned.tells for planned in PLANNED.values()) >= 15


def test_every_alert_that_is_asked_for_exists() -> None:
    names = {alert.name for alert in rules.alerts(Parameters())}

    for planned in PLANNED.values():
        for wanted in planned.tells:
            for pattern in wanted.alerts:
                assert any(re.fullmatch(pattern, name) for name in names), (planned.name, pattern)


def test_summary_has_a_row_for_each_group() -> None:
    made = story(tell())
    scores = {"all": counted(made, about("Low", 30)), "tuned": counted(made)}

    lines = summary([made], [(Rules("ours", {}, names_jobs=True), scores)]).splitlines()

    assert len(lines) == 4
    assert lines[2].startswith("| ours | all (1) | 1 of 1 | 0 | 1.00 | 1.00 | 1 of 1 | 20 | 20 |")
    assert lines[3].startswith("| ours | tuned (1) | 0 of 1 | 0 | - | 0.00 |")


def test_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["--promtool", str(tmp_path / "none")])

    assert ended.value.code == 2
    assert "--promtool gives its path" in capsys.readouterr().err


def test_document_lists_every_story() -> None:
    document = (Path(__file__).parents[2] / "docs" / "alerts-score.md").read_text()

    assert [name for name in PLANNED if f"\n| {name} | " not in document] == []
    assert f"gpugauge | all ({len(PLANNED)})" in document
