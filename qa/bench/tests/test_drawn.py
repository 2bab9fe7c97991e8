from __future__ import annotations

import re

from gpugauge.base.serving import COMMANDS
from gpugauge.simulator.scenario.load import parse_scenario
from gpugauge.workload.command import command_name
from qa.bench.alerts import drawn, kept_back, tuned

PLACES = {"slurmstepd": 10, "pod: ": 10, "docker-": 10}


def texts() -> list[str]:
    return [text for story in drawn.STORIES for text in story.machines.values()]


def test_equal_seeds_give_equal_stories() -> None:
    assert tuple(map(drawn.draw_story, range(drawn.COUNT))) == drawn.STORIES
    assert len({str(story.machines) for story in drawn.STORIES}) == drawn.COUNT


def test_names_are_those_of_no_other_story() -> None:
    names = [story.name for story in (*drawn.STORIES, *tuned.STORIES, *kept_back.STORIES)]

    assert len(names) == len(set(names))


def test_every_machine_is_a_scenario() -> None:
    for story in drawn.STORIES:
        for node, text in story.machines.items():
            parse_scenario(f"description: {story.name}\n{text}", story.name, node)


def test_the_stories_have_all_kinds_of_jobs() -> None:
    together = "".join(texts())

    assert {place: together.count(place) >= least for place, least in PLACES.items()} == dict.fromkeys(PLACES, True)
    assert together.count("hook: false") >= 15
    assert together.count("hook: true") >= 30
    expected = [expectation for story in drawn.STORIES for expectation in story.expectations]
    assert sum("TrainingLoadLow" in expectation.alerts for expectation in expected) >= 20
    assert sum(bool(expectation.cause_alert) for expectation in expected) >= 10
    assert sum(not story.expectations for story in drawn.STORIES) >= 10


def test_drawn_servers_are_servers_of_the_list() -> None:
    for line in drawn._SERVERS:
        assert re.fullmatch(COMMANDS, command_name([word.encode() for word in line.split()]).decode()), line
