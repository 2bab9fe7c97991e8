"""Precision, recall and delay of alert rules over labelled stories, of ours and of naive ones."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from qa.bench.alerts.replay import Run, replay
from qa.bench.alerts.story import Expectation, Story

# Minutes after the end of a fault in which an alert may still begin, because it averages over a window.
GRACE = 15
CAUSE_ALERTS = ("TrainingLimitedBy",)
NAIVE_METRIC = "DCGM_FI_DEV_GPU_UTIL"
NAIVE = {
    "GPU_UTIL < 10 for 30m": (f"{NAIVE_METRIC} < 10", "30m"),
    "avg by (instance) (GPU_UTIL) < 30 for 15m": (f"avg by (instance) ({NAIVE_METRIC}) < 30", "15m"),
    # With `offset`, so that it does not fire on the first samples of a recording; in practice the series is older.
    "avg_over_time(GPU_UTIL[30m]) < 5": (
        f"avg_over_time({NAIVE_METRIC}[30m]) < 5 and {NAIVE_METRIC} offset 29m",
        "0s",
    ),
}
Groups = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """Rules to be scored. An alert of rules that name no job counts for every job on its GPU or machine."""

    name: str
    groups: Groups
    names_jobs: bool


@dataclass
class Score:
    """Counts by story and identity. `wrong` has story, identity and alert of each false alarm, `missed` story and
    identity of each expected alert that did not fire.
    """

    fired: int = 0
    delays: list[int] = field(default_factory=list)  # minutes
    named: int = 0  # expectations with a cause, for which the alert of that cause fired
    nameable: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    missed: list[tuple[str, str]] = field(default_factory=list)
    twice: set[tuple[str, str]] = field(default_factory=set)  # story and job with two alerts at the same time
    low_use: int = 0  # expectations about load or idle GPUs
    low_use_fired: int = 0

    @property
    def false_alarms(self) -> int:
        """The number of identities with a false alarm, by story."""
        return len({(story, identity) for story, identity, _ in self.wrong})

    @property
    def precision(self) -> float | None:
        """The share of the alerts that were right; None without alerts."""
        alerts = self.fired + self.false_alarms
        return self.fired / alerts if alerts else None

    @property
    def recall(self) -> float | None:
        """The share of the expected alerts that fired; None if none was expected."""
        expected = self.fired + len(self.missed)
        return self.fired / expected if expected else None

    @property
    def delay(self) -> float | None:
        """Median minutes from the begin of the fault to the alert."""
        return statistics.median(self.delays) if self.delays else None


def naive() -> list[Rules]:
    """Return the rules that articles and issues recommend, each as a set."""
    return [
        Rules(name, {"groups": [{"name": "naive", "rules": [{"alert": "Naive", "expr": expr, "for": wait}]}]}, False)
        for name, (expr, wait) in NAIVE.items()
    ]


def score_all(
    stories: Sequence[Story], sets: Sequence[Rules], promtool: str, workers: int = 2
) -> list[tuple[Rules, dict[str, Score]]]:
    """Replay the stories with each set of rules; return scores by group of stories, "all" first. Raises StoryError."""
    with ThreadPoolExecutor(workers) as pool:
        # All sets in one pool, so that no worker idles between two sets.
        fired = [[pool.submit(replay, story, rules.groups, promtool) for story in stories] for rules in sets]
        return [
            (rules, _scores(stories, [runs.result() for runs in every], names_jobs=rules.names_jobs))
            for rules, every in zip(sets, fired, strict=True)
        ]


def _scores(stories: Sequence[Story], fired: Sequence[list[Run]], *, names_jobs: bool) -> dict[str, Score]:
    scores = {group: Score() for group in ("all", *dict.fromkeys(story.group for story in stories))}
    for story, runs in zip(stories, fired, strict=True):
        for group in ("all", story.group):
            count(scores[group], story, runs, names_jobs=names_jobs)
    return scores


def count(result: Score, story: Story, runs: Iterable[Run], *, names_jobs: bool) -> None:
    """Add the result of one story to the score."""
    is_about: Callable[[Run, Expectation], bool] = (
        _says if names_jobs else lambda run, expectation: _holds(story, run, expectation)
    )
    every = list(runs)
    # The alerts about causes show which cause the text of the alert about the load names; they are not sent.
    runs = [run for run in every if not run.alert.startswith(CAUSE_ALERTS)]
    if names_jobs:
        result.twice |= {(story.name, _identity(run.labels)) for run in runs if _is_second(run, runs)}
    for run in runs:
        if not any(
            is_about(run, expectation) and expectation.since <= run.begin <= expectation.until + GRACE
            for expectation in story.expectations
        ):
            result.wrong.append((story.name, _identity(run.labels), run.alert))
    for expectation in (expectation for expectation in story.expectations if expectation.required):
        begins = [
            run.begin
            for run in runs
            if is_about(run, expectation) and expectation.since <= run.begin <= expectation.until
        ]
        result.low_use += expectation.kind != "health"
        if not begins:
            result.missed.append((story.name, _identity(expectation.labels)))
            continue
        result.fired += 1
        result.low_use_fired += expectation.kind != "health"
        result.delays.append(min(begins) - expectation.since)
        if expectation.cause_alert:
            result.nameable += 1
            result.named += any(
                run.alert == expectation.cause_alert and expectation.labels.items() <= run.labels.items()
                for run in every
            )


def _is_second(run: Run, runs: Sequence[Run]) -> bool:
    """Return whether another alert about the run's job fires when it begins."""
    return "workload_job" in run.labels and any(
        other is not run and other.labels == run.labels and other.begin <= run.begin <= other.end for other in runs
    )


def _identity(labels: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _says(run: Run, expectation: Expectation) -> bool:
    return expectation.labels.items() <= run.labels.items() and any(
        re.fullmatch(alert, run.alert) for alert in expectation.alerts
    )


def _holds(story: Story, run: Run, expectation: Expectation) -> bool:
    """Return whether the alert's GPU, or one on its machine, is the expected one or is held by the expected job."""
    return any(
        expectation.labels.items() <= {"uuid": uuid, "instance": device.instance}.items()
        or expectation.labels.get("workload_job") in device.jobs
        for uuid, device in story.devices.items()
        if device.instance == run.labels.get("instance") and run.labels.get("uuid", uuid) == uuid
    )
