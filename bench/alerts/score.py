"""How right alert rules are: precision, recall and delay over labelled stories, of ours and of naive ones."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bench.alerts.replay import Run, replay
from bench.alerts.story import Story, Tell

# Minutes after the end of what was wrong in which an alert may still begin: it looks back over its window.
GRACE = 15
NAIVE_METRIC = "DCGM_FI_DEV_GPU_UTIL"
NAIVE = {
    "GPU_UTIL < 10 for 30m": (f"{NAIVE_METRIC} < 10", "30m"),
    "avg by (instance) (GPU_UTIL) < 30 for 15m": (f"avg by (instance) ({NAIVE_METRIC}) < 30", "15m"),
    # Where it is in use the series is older than its window, and it does not fire on the first sample of a recording.
    "avg_over_time(GPU_UTIL[30m]) < 5": (
        f"avg_over_time({NAIVE_METRIC}[30m]) < 5 and {NAIVE_METRIC} offset 29m",
        "0s",
    ),
}
Groups = dict[str, Any]


@dataclass(frozen=True)
class Rules:
    """Rules to be scored. Those that name no job are taken to mean every job on the GPU or machine that they name."""

    name: str
    groups: Groups
    names_jobs: bool


@dataclass
class Score:
    """Counted by story and identity. `wrong` tells story, identity and alert of each false alarm, `missed` of each tell
    that did not come.
    """

    told: int = 0
    delays: list[int] = field(default_factory=list)  # minutes
    named: int = 0  # tells with a cause, for which the alert of that cause fired
    nameable: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    missed: list[tuple[str, str]] = field(default_factory=list)
    low_use: int = 0  # tells about load or idle GPUs
    low_use_told: int = 0

    @property
    def false_alarms(self) -> int:
        """Identities about which something wrong was told, by story."""
        return len({(story, who) for story, who, _ in self.wrong})

    @property
    def precision(self) -> float | None:
        """Share of what was told that was right; None if nothing was told."""
        all_told = self.told + self.false_alarms
        return self.told / all_told if all_told else None

    @property
    def recall(self) -> float | None:
        """Share of what should have been told that was; None if nothing should."""
        wanted = self.told + len(self.missed)
        return self.told / wanted if wanted else None

    @property
    def delay(self) -> float | None:
        """Median minutes from the beginning of what is wrong to the alert."""
        return statistics.median(self.delays) if self.delays else None


def naive() -> list[Rules]:
    """Return the rules that articles and issues recommend, each by itself."""
    return [
        Rules(name, {"groups": [{"name": "naive", "rules": [{"alert": "Naive", "expr": expr, "for": wait}]}]}, False)
        for name, (expr, wait) in NAIVE.items()
    ]


def score_all(
    stories: Sequence[Story], sets: Sequence[Rules], promtool: str, workers: int = 2
) -> list[tuple[Rules, dict[str, Score]]]:
    """Replay the stories with each set of rules; return scores by group of stories, "all" first. Raises StoryError."""
    with ThreadPoolExecutor(workers) as pool:
        # All at once: the last promtool of one set does not hold up the next.
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
    """Add what came of one story."""
    is_about: Callable[[Run, Tell], bool] = _says if names_jobs else lambda run, tell: _holds(story, run, tell)
    runs = list(runs)
    for run in runs:
        if not any(is_about(run, tell) and tell.since <= run.begin <= tell.until + GRACE for tell in story.tells):
            result.wrong.append((story.name, _identity(run.labels), run.alert))
    for tell in (tell for tell in story.tells if tell.required):
        begins = [run.begin for run in runs if is_about(run, tell) and tell.since <= run.begin <= tell.until]
        result.low_use += tell.kind != "health"
        if not begins:
            result.missed.append((story.name, _identity(tell.who)))
            continue
        result.told += 1
        result.low_use_told += tell.kind != "health"
        result.delays.append(min(begins) - tell.since)
        if tell.best:
            result.nameable += 1
            result.named += any(run.alert == tell.best and is_about(run, tell) for run in runs)


def _identity(labels: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _says(run: Run, tell: Tell) -> bool:
    return tell.who.items() <= run.labels.items() and any(re.fullmatch(alert, run.alert) for alert in tell.alerts)


def _holds(story: Story, run: Run, tell: Tell) -> bool:
    """Whether the GPU, or one on the machine, is what somebody should be told about, or is held by a job that is."""
    return any(
        tell.who.items() <= {"uuid": uuid, "instance": device.instance}.items()
        or tell.who.get("workload_job_id") in device.jobs
        for uuid, device in story.devices.items()
        if device.instance == run.labels.get("instance") and run.labels.get("uuid", uuid) == uuid
    )
