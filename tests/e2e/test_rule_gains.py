"""The gain in the texts of alerts, in Prometheus' rule tester, over drawn jobs whose steps are known."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.load import alert_of_cause
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import Selectors
from gpugauge.artifacts.rules.texts import Texts
from gpugauge.verdict.causes import UNBOUNDED
from gpugauge.verdict.gain import NARROW
from tests.artifacts.rules.rule_stories import DEFAULT, PER_CAUSE, Row
from tests.drawn import draws
from tests.e2e.ruletester import SECONDS, Case, check, clocks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS)]
CAUSES = ("data_loading", "host_bound", "transfer", "cpu_limited")
LIMITS = {f"{kind}pu": f"limited by its computation on the {kind.upper()}PU" for kind in "gc"}
LIMITS["transfer"] = "it waits for copies to the GPU"
JOBS = 30
# For an hour all jobs are as drawn; in the last minutes some processes evaluate or restart, and export no gain.
PHASES = [("bad", 55), ("good", 6)]


@dataclass
class Rank:
    """A process. `left` is the time of its steps without each cause, relative to its steps; the bounds are those of
    the export, and `pauses` whether it exports no gain at the end.
    """

    limit: str
    left: dict[str, float]
    spread: tuple[float, float]
    pauses: bool


@dataclass
class Job:
    """A job with synchronous ranks, of which each step ends with the slowest."""

    name: str
    cluster: str
    lost: dict[str, float]
    after: str
    ranks: list[Rank] = field(default_factory=list)

    @property
    def identity(self) -> dict[str, str]:
        """The labels of the job."""
        return {"workload_job_kind": "slurm", "workload_job": self.name}

    @property
    def main(self) -> str:
        """The cause that costs most."""
        return max(self.lost, key=lambda cause: self.lost[cause])

    def gain(self, number: Callable[[float], str], *, queries: bool = False) -> str:
        """Return the text about the main cause: that of the rank that is slowest without it, within what the share of
        the cause allows. With queries that is said where no gain is known, and one number for narrow bounds.
        """
        most = 1 / (1 - self.lost[self.main])
        at_most = f"\nExpected: up to {number(most)} times as fast. " if queries and self.main not in UNBOUNDED else ""
        gaining = [rank for rank in self.ranks if self.main in rank.left]
        if not gaining or any(rank.limit == self.main and self.main not in rank.left for rank in self.ranks):
            return at_most
        least, expected = (min(f(rank) / rank.left[self.main] for rank in gaining) for f in (_lower, lambda _: 1.0))
        upper = max(rank.spread[1] / rank.left[self.main] for rank in gaining)
        least, expected, upper = (min(value, most) for value in (least, expected, upper))
        narrow = queries and upper <= NARROW * least
        if least < 1.05 and not narrow:
            return at_most
        words = f"about {number(expected)}" if narrow else f"at least {number(least)}"
        return f"\nExpected: {words} times as fast, then {LIMITS[self.after]}. "

    def rows(self) -> Iterator[Row]:
        """Yield the series of its processes."""
        for number, rank in enumerate(self.ranks):
            process = {"process": f"{self.cluster}{self.name}-{number}", "cluster": self.cluster}
            yield _row("gpu_process_host_info", 1, {**process, **self.identity, "torch_build": "cuda"})
            yield _row("training_start_timestamp_seconds", -7200, process)
            yield _row("training_state", 1, {**process, "state": "training"})
            yield _row("training_seconds_total", 1, {**process, "state": "training"}, counter=True)
            yield _row("training_gpu_held_seconds_total", 1, process, counter=True)
            for cause, share in self.lost.items():
                yield _row("training_lost_seconds_total", share, {**process, "cause": cause}, counter=True)
            yield _row("training_limited_by", 1, {**process, "cause": rank.limit})
            for cause, left in rank.left.items():
                at = {**process, "cause": cause}
                factors = {"": 1.0, "_lower": rank.spread[0], "_upper": rank.spread[1]}
                for part, factor in factors.items():
                    yield _row(f"training_expected_speedup{part}_ratio", factor / left, at, pauses=rank.pauses)
                yield _row("training_expected_speedup_info", 1, {**at, "next": self.after}, pauses=rank.pauses)


def _lower(rank: Rank) -> float:
    return rank.spread[0]


def _row(name: str, value: float, labels: dict[str, str], *, counter: bool = False, pauses: bool = False) -> Row:
    return Row(name, labels, value, None if pauses else value, counter)


def drawn(seed: int) -> list[Job]:
    """Return jobs of two clusters, some with equal names. No other seed has these clusters."""
    dice = random.Random(seed)
    jobs = []
    for number in range(JOBS):
        causes = dice.sample(CAUSES, dice.randint(1, 3))
        lost = dict(zip(causes, (dice.choice((0.55, 0.6, 0.65)), 0.1, 0.12), strict=False))
        job = Job(f"{number // 2}", f"{seed}{'ab'[number % 2]}", {**lost, "unknown": 0.01}, dice.choice(list(LIMITS)))
        known = dice.choice(("all", "all", "some", "none", "others"))
        for _ in range(dice.randint(1, 4)):
            limit = dice.choice(causes) if dice.random() < 0.3 else causes[0]
            rank = Rank(limit, {}, (dice.uniform(0.6, 0.9), dice.uniform(1.1, 1.6)), dice.random() < 0.3)
            for cause in causes:
                wanted = {"all": True, "some": dice.random() < 0.6, "none": False, "others": cause != causes[0]}[known]
                if wanted:
                    rank.left[cause] = 1 / dice.choice((1.21, 1.72, 2.63, 8.04, 47.12, 640.2))
            job.ranks.append(rank)
        jobs.append(job)
    return jobs


def keep_needed(groups: list[dict[str, Any]], alert: str) -> None:
    """Remove the rules that the alert does not need; a recording rule is needed where its name is in the text."""
    every = [rule for group in groups for rule in group["rules"]]
    records = [rule for rule in every if "record" in rule]
    kept = [rule for rule in every if rule.get("alert") == alert]
    for rule in kept:  # grows
        text = str(rule)
        kept += [other for other in records if other["record"] in text and other not in kept]
    assert set(re.findall(r"gpugauge:[\w:]+", str(kept))) == {rule["record"] for rule in kept if "record" in rule}
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if rule in kept]


def case(seed: int, alert: str, p: Parameters, cause: str) -> Case:
    """Return drawn jobs with one alert: it fires for each whose main cause fits, here with the text about its gain
    alone.
    """
    jobs = drawn(seed)
    assert JOBS / 10 < sum(1 for job in jobs if job.gain(str)) < JOBS * 9 / 10
    tree = rules.groups(p)
    keep_needed(tree["groups"], alert)
    (rule,) = (rule for group in tree["groups"] for rule in group["rules"] if rule.get("alert") == alert)
    text = Texts(Selectors.of(p)).gain(cause and f'"{cause}"')
    assert text in rule["annotations"]["description"]
    rule["annotations"] = {"description": f"[{text}]"}
    # For Grafana a number is the value of a label.
    number = (lambda value: f"{value:.1f}") if p.engine == "prometheus" else (lambda value: f"{round(value, 1):g}")
    expected: dict[str, Any] = {
        "eval_time": f"{sum(minutes for _, minutes in PHASES) - 1}m",
        "alertname": alert,
        "exp_alerts": [
            {
                "exp_labels": {"severity": rule["labels"]["severity"], "cluster": job.cluster, **job.identity},
                "exp_annotations": {"description": f"[{job.gain(number, queries=p.engine == 'prometheus')}]"},
            }
            for job in jobs
            if cause in {"", job.main}
        ],
    }
    series = [(row.name, row.labels, row.values(PHASES)) for job in jobs for row in job.rows()]
    series += clocks({("", job.cluster) for job in jobs})
    return Case(f"{alert} for {p.engine}, drawn by seed {seed}", series, [expected], p, tree=tree)


@pytest.mark.everything
def test_the_gain_of_drawn_jobs(tmp_path: Path) -> None:
    """Grafana's templates are those of Prometheus, without queries."""
    engines = (DEFAULT, Parameters(engine="grafana"))

    check(tmp_path, [case(seed, "TrainingLoadLow", engine, "") for seed in draws(1, 4) for engine in engines])


def test_the_gain_in_the_alert_about_a_cause(tmp_path: Path) -> None:
    causes = [CAUSES[number] for number in draws(2, len(CAUSES))]

    check(tmp_path, [case(7, alert_of_cause(cause), PER_CAUSE, cause) for cause in causes])
