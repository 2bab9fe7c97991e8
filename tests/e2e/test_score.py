"""A reduced set of the stories, replayed by a real promtool; one of them recorded again through the real verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from qa.bench.alerts import tuned
from qa.bench.alerts.__main__ import main as command
from qa.bench.alerts.record import record
from qa.bench.alerts.score import Rules, Score, naive, score_all
from qa.bench.alerts.story import SHIPPED, Story, read, write

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from tests.drawn import EVERYTHING, draws, seeds
from tests.e2e.ruletester import promtools
from tests.needs import need

pytestmark = pytest.mark.e2e

RECORDED_AGAIN = ("data-loading", "healthy") if EVERYTHING else ("data-loading",)
REDUCED = (
    *("throttled", "hang-at-full-load", "held-idle", "on-cpu", "quiet-serving", "long-evaluation", "scrape-gaps"),
    *("full-house", "starved-between-evaluations", "uneven-ranks", "card-comes-back", "straggler"),
)
OURS = Rules("gpugauge", rules.groups(Parameters(per_cause=True)), names_jobs=True)


def scored(stories: list[Story], tool: str, *sets: Rules) -> list[Score]:
    return [scores["all"] for _, scores in score_all(stories, sets, tool)]


@pytest.mark.everything
@seeds(draws(1, 2), "version")
def test_the_rules_are_right_and_the_naive_ones_less(version: int) -> None:
    stories = [read(SHIPPED / f"{name}.json.gz") for name in REDUCED]

    ours, *others = scored(stories, promtools()[version], OURS, *naive())

    assert (ours.wrong, ours.missed) == ([], [])
    assert all(other.recall is not None and other.recall < 0.95 for other in others)


@pytest.mark.everything
def test_stories_recorded_again_score_as_the_recordings(tmp_path: Path) -> None:
    planned = [replace(story, minutes=40) for story in tuned.STORIES if story.name in RECORDED_AGAIN]
    stories = [record(story) for story in planned]

    (ours,) = scored(stories, need("promtool"), OURS)
    (before,) = scored([read(SHIPPED / f"{story.name}.json.gz") for story in planned], need("promtool"), OURS)

    assert (ours.fired, ours.wrong, ours.missed, ours.named) == (1, [], [], 1)
    assert ours.delays == before.delays
    assert read(write(stories[0], tmp_path)) == stories[0]


def test_the_command_scores_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(read(SHIPPED / "held-idle.json.gz"), tmp_path)
    (tmp_path / "rules.yaml").write_text("idle_patience: 20m\n")

    command(["--promtool", need("promtool"), "--config.file", str(tmp_path / "rules.yaml"), str(tmp_path)])

    assert "| gpugauge | all (1) | 1 of 1 | 0 | 0 | 1.00 | 1.00 |" in capsys.readouterr().out
