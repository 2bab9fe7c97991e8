"""Drawn exporters that are up at times, jobs of short processes, loads that swing, and clocks, judged by the rules in
promtool.

The truth is what the story was drawn with: the share of the time in which the exporter is up, the load of the job, and
when the clock is wrong.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.drawn import EVERYTHING, draws
from tests.needs import need

from gpugauge.artifacts.rules import cost
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import JOB_LABELS
from gpugauge.faults.table import FAULTS
from qa.bench.alerts.replay import Run, replay
from qa.bench.alerts.story import Story, notation

pytestmark = pytest.mark.timeout(3600 if EVERYTHING else 600)

# The groups of the losses have twice the interval, and promtool evaluates all groups at it.
RULES = {
    (every, turn): rules.groups(Parameters(evaluation_interval=turn // 2, scrape_interval=every))
    for every in (15, 60)
    for turn in (60, 120)
}
MINUTES = 90
JOB = {"workload_job_kind": "slurm", "workload_job": "7"}
GPU = {"uuid": "GPU-0"}
_TOGETHER = 25  # stories of a promtool


@dataclass
class World:
    """The series of a node. `up` tells whether a scrape succeeds; with `restarts` the exporter was down before it."""

    up: Callable[[float], bool] = lambda _: True
    restarts: bool = False
    clock: Callable[[float], float] = lambda at: at
    minutes: int = MINUTES
    scrape: int = 15  # seconds
    turn: int = 60  # seconds between two evaluations
    servers: int = 1  # that have its series
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]] = field(default_factory=dict)

    @property
    def times(self) -> range:
        """The times of its scrapes."""
        return range(0, 60 * self.minutes, self.scrape)

    def gauge(self, name: str, labels: Mapping[str, str], value: Callable[[float], float | None]) -> None:
        seen = [value(at) if self.up(at) else None for at in self.times]
        self.series[name, tuple(labels.items())] = seen

    def counter(self, name: str, labels: Mapping[str, str], rate: Callable[[float], float | None]) -> None:
        """`rate` is None while there is no series."""
        total, values = 0.0, list[float | None]()
        for at in self.times:
            now, up = rate(at), self.up(at)
            lost = now is None or (self.restarts and not up)
            total = 0.0 if lost else total + (now or 0.0) * self.scrape
            values.append(total if up and now is not None else None)
        self.series[name, tuple(labels.items())] = values

    def exporter(self) -> None:
        self.series["up", (("job", "gpugauge"),)] = [float(self.up(at)) for at in self.times]
        self.gauge("gpugauge_snapshot_timestamp_seconds", {}, self.clock)
        self.gauge("gpu_info", {**GPU, "index": "0"}, lambda _: 1.0)

    def gpu(self, fault: str = "") -> None:
        """Add a GPU that the exporter judges, with a fault by the name of its alert."""
        problem = {**GPU, "problem": fault}
        self.gauge("gpu_up", GPU, lambda _: float(fault != "GpuLost"))
        self.gauge("gpu_problems", GPU, lambda _: float(bool(fault)))
        for name in ("gpu_problem", "gpu_problem_info") if fault else ():
            self.gauge(name, problem, lambda _: 1.0)

    def driver(self, answers: bool = True, reason: str = "timeout") -> None:
        self.gauge("gpugauge_driver_up", {"reason": "ok" if answers else reason}, lambda _: float(answers))

    def process(
        self,
        name: str,
        load: float | Callable[[float], float],
        begin: float = 0.0,
        end: float = math.inf,
        starting: float = 0.0,
        *,
        hook: bool = True,
        state: str = "",
        job: Mapping[str, str] = JOB,
    ) -> None:
        """Add a process with a load that trains, or is in a state, from `starting` seconds after its begin on."""
        own = {"process": name}

        def alive(at: float) -> bool:
            return begin <= at < end

        self.gauge(
            "gpu_process_host_info", {**own, **job, "torch_build": "cuda"}, lambda at: 1.0 if alive(at) else None
        )
        if hook:
            self.gauge("torch_process_info", {**own, **job}, lambda at: 1.0 if alive(at) else None)
        mostly = state or ("training" if hook else "unknown")
        for each in ("training", "unknown", "held_idle", "stalled", "starting"):

            def share(at: float, each: str = each) -> float | None:
                now = mostly if at >= begin + starting else "starting"
                return float(each == now) if alive(at) else None

            self.gauge("training_state", {**own, "state": each}, share)
            self.counter("training_seconds_total", {**own, "state": each}, share)
        since = -7200.0 if begin == 0 else begin
        first = "training_start_timestamp_seconds" if hook else "gpu_process_start_timestamp_seconds"
        started = self.clock(since + starting)
        self.gauge(first, own, lambda at: started if alive(at) and at >= begin + starting else None)
        lost = {**own, "cause": "unknown"}

        def used(at: float) -> float:
            return load(at) if callable(load) else load

        self.counter("training_gpu_held_seconds_total", own, lambda at: 1.0 if alive(at) else None)
        self.counter("training_lost_seconds_total", lost, lambda at: 1 - used(at) if alive(at) else None)


def _selector(metric: str, labels: Mapping[str, str]) -> str:
    return metric + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def judged(worlds: Mapping[str, World]) -> dict[str, dict[str, Run]]:
    """Return the first run of each alert by name, of each world."""
    return {name: {run.alert: run for run in reversed(runs)} for name, runs in runs_of(worlds).items()}


def runs_of(
    worlds: Mapping[str, World], packs: Mapping[tuple[int, int], dict[str, Any]] = RULES
) -> dict[str, list[Run]]:
    """Return the runs of all alerts in their order, of each world, by the rules for its two intervals."""
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for (every, turn), groups in packs.items():
        names = sorted(name for name in worlds if (worlds[name].scrape, worlds[name].turn) == (every, turn))
        for first in range(0, len(names), _TOGETHER):
            together = names[first : first + _TOGETHER]
            series = {
                _selector(metric, {**dict(labels), "cluster": name, "instance": "n", "replica": str(n)}): notation(
                    values
                )
                for name in together
                for n in range(worlds[name].servers)
                for (metric, labels), values in worlds[name].series.items()
                if any(value is not None for value in values)
            }
            minutes = max(worlds[name].minutes for name in together)
            story = Story(name="drawn", description="drawn", interval=every, minutes=minutes, series=series)
            for run in replay(story, groups, need("promtool")):
                found[run.labels["cluster"]].append(run)
    return found


# What is wrong underneath, and the alert about it.
KINDS = {
    "none": "",
    "low": "TrainingLoadLow",
    "low without the hook": "TrainingLoadLow",
    "a fault": "",
    "blind": "ExporterBlind",
    "no GPU": "",
    "held_idle": "GpuHeldIdle",
    "stalled": "TrainingStalled",
}
JUDGED = sorted(name for name in FAULTS if name != "GpuReadingFailed")


def cycle(dice: random.Random, scrape: int) -> tuple[Callable[[float], bool], float, str]:
    """Return when an exporter is up, the share of the time, and how in words."""
    if dice.random() < 0.25:
        every = dice.choice((2, 3, 4))
        failing = dice.choice((every - 1, 1))
        return (lambda at: at // scrape % every >= failing), 1 - failing / every, f"{failing} of {every} scrapes fail"
    cycles = [(n, 10 - n) for n in range(1, 10)] + [(2, 5), (5, 2), (3, 3), (8, 8), (9, 1)]
    up, down = dice.choice([each for each in cycles if 60 * each[0] >= 3 * scrape])
    phase = dice.randint(0, 600)
    return (lambda at: (at + phase) % (60 * (up + down)) < 60 * up), up / (up + down), f"{up} min up, {down} min down"


def test_share_of_the_window_decides_not_an_unbroken_stretch() -> None:
    worlds, truth = {}, {}
    for seed in draws(8, 1500):
        dice, scrape = random.Random(seed), 60 if seed // 32 % 4 == 0 else 15
        up, share, words = cycle(dice, scrape)
        fault = [*KINDS][seed % len(KINDS)]
        alert = dice.choice(JUDGED) if fault == "a fault" else ""
        # Counters that are scraped once in each life at the same age have risen by nothing.
        restarts = dice.random() < 0.5 and ("min" in words or share > 0.6)
        world = worlds[f"c{seed}"] = World(up, restarts, scrape=scrape, turn=turn_of(seed))
        world.exporter()
        world.driver(fault not in {"blind", "no GPU"}, "library_not_found" if fault == "no GPU" else "timeout")
        if fault != "no GPU":
            world.gpu(alert)
        if fault not in {"a fault", "blind", "no GPU"}:
            state = fault if fault in {"held_idle", "stalled"} else ""
            world.process("p", 0.9 if fault == "none" else 0.2, hook="without" not in fault, state=state)
        truth[f"c{seed}"] = share, KINDS[fault] or alert, f"{words} ({scrape} s), restarts {world.restarts}, {fault}"
    for name, runs in judged_all(worlds, truth):
        share, expected, words = truth[name]
        assert ("ExporterDown" in runs) or share > 0.5, (words, runs)
        assert ("ExporterDown" not in runs) or share < 0.75, (words, runs)
        assert runs.keys() - {"ExporterDown"} == {expected} - {""}, (words, runs)
        for alert in runs.keys() - {"ExporterDown"}:
            assert runs[alert].begin <= 50, (words, runs)
            assert runs[alert].end == MINUTES - 1, (words, runs)  # it does not resolve and fire again


def turn_of(seed: int) -> int:
    """Return the seconds between two evaluations: the longest, at which a draw costs half, more often."""
    return 60 if seed % 64 < 16 else 120


def judged_all(worlds: Mapping[str, World], names: Iterable[str]) -> Iterator[tuple[str, dict[str, Run]]]:
    found = judged(worlds)
    return ((name, found.get(name, {})) for name in names)


def test_a_job_of_short_processes_is_judged_as_the_job() -> None:
    worlds, truth = {}, {}
    for seed in draws(4, 600):
        dice = random.Random(seed)
        load, hook = dice.choice((0.2, 0.9)), dice.random() < 0.7
        world = worlds[f"c{seed}"] = World(minutes=60, turn=turn_of(seed))
        world.exporter()
        world.driver()
        world.gpu()
        # A rule may read what another group has recorded an evaluation before.
        least, turns = 1.25 * world.turn, (1.25 * world.turn, 3 * world.turn)
        for slot in range(dice.randint(1, 4)):
            at, lengths = float(dice.randint(1, 300)), dice.choice((turns, (240, 440), (least, 2400)))
            while at < 60 * world.minutes:
                length = dice.uniform(*lengths)
                starting = dice.uniform(5, 0.2 * length) if hook else 0.0
                world.process(f"p{slot}-{int(at)}", load, at, at + length, starting, hook=hook)
                at += length + dice.uniform(5, min(60, 0.25 * length))
        truth[f"c{seed}"] = load
    for name, runs in judged_all(worlds, truth):
        assert runs.keys() == ({"TrainingLoadLow"} if truth[name] < 0.5 else set()), (name, runs)
        if runs:
            low = runs["TrainingLoadLow"]
            assert (low.begin <= 45, low.end) == (True, worlds[name].minutes - 1), (name, runs)


def test_a_process_that_has_ended_has_no_alert_of_the_living() -> None:
    """A process of a job is idle or stalled for a part of the window, ends, and is followed by a training."""
    worlds, truth = {}, {}
    for seed in draws(4, 400):
        dice, world = random.Random(seed), World(turn=turn_of(seed))
        alert, patience = dice.choice((("GpuHeldIdle", 30), ("TrainingStalled", 10)))
        length = dice.choice((dice.uniform(0.3, 0.85), dice.uniform(1.5, 2))) * patience
        begin = float(dice.randint(60, 900))
        end = begin + 60 * length
        world.exporter()
        world.driver()
        world.gpu()
        world.process("p", 0.9, begin, end, state="held_idle" if patience == 30 else "stalled")
        if dice.random() < 0.8:
            world.process("q", 0.9, end + dice.uniform(5, 120))
        worlds[f"c{seed}"], truth[f"c{seed}"] = world, (alert if length > patience else "", end / 60)
    for name, runs in judged_all(worlds, truth):
        alert, end = truth[name]
        assert runs.keys() == {alert} - {""}, (name, truth[name], runs)
        assert not alert or runs[alert].begin <= end, (name, runs)


def test_what_several_servers_have_is_known_once() -> None:
    """The exporter is up, and the driver answers for a part of the time only."""
    worlds, truth = {}, {}
    for seed in draws(2, 600):
        dice = random.Random(seed)
        known, idle = dice.choice((dice.uniform(0.05, 0.45), dice.uniform(0.55, 1))), dice.random() < 0.5
        world = worlds[f"c{seed}"] = World(servers=dice.randint(1, 3), turn=turn_of(seed))
        world.exporter()
        world.driver()
        world.gpu()
        world.process("p", 0.9, state="held_idle" if idle else "")
        for (name, labels), values in world.series.items():
            if name == "training_seconds_total" and idle:
                world.series[name, labels] = [value and known * value for value in values]
        world.gauge("gpu_allocation_info", {**GPU, **JOB}, lambda _: 1.0)
        for name, rate in (("busy", 0.0), ("observed", known)):
            # mypy has no type for the default by which the lambda keeps the rate of its turn.
            world.counter(f"gpu_{name}_seconds_total", {**GPU, "engine": "gpu"}, lambda _, rate=rate: rate)  # type: ignore[misc]
        truth[f"c{seed}"] = "GpuHeldIdle" if idle else "AllocatedGpuUnused", known
    for name, runs in judged_all(worlds, truth):
        alert, known = truth[name]
        assert runs.keys() == ({alert} if known > 0.5 else set()), (worlds[name].servers, known, runs)


SELECTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda value, expected: value == expected,
    "!=": lambda value, expected: value != expected,
    "=~": lambda value, expected: bool(re.fullmatch(expected, value)),
    "!~": lambda value, expected: not re.fullmatch(expected, value),
}
VALUES = {
    "workload_job_kind": ("job", "slurm", "job|pod"),
    "workload_namespace": ("a", "b", "", "a|b", ".+"),
    "workload_job": ("7", "fit", "f.*"),
    "cluster": ("c0", "c.*"),
}


def test_matchers_and_thresholds_choose_the_jobs() -> None:
    """Each job that the matchers select has a bill, and an alert if its load is below that of its namespace."""
    billed = {"alert": "Billed", "expr": f"{cost.HELD} > 0"}
    for seed in draws(1, 200):
        dice = random.Random(seed)
        parts = [
            (label, dice.choice([*SELECTS]), dice.choice(VALUES[label]))
            for label in dice.sample([*VALUES], dice.randint(1, 3))
        ]
        matchers = ",".join(f'{label}{operator}"{value}"' for label, operator, value in parts)
        loads = {name: dice.choice((0.3, 0.5, 0.8)) for name in ("a", "b") if dice.random() < 0.5}
        chosen = Parameters(matchers=matchers, thresholds=loads, threshold=0.5, evaluation_interval=60)
        world, expected = World(minutes=45, turn=120), set[tuple[str, ...]]()
        paid = set[tuple[str, ...]]()
        world.exporter()
        world.driver()
        for place, (kind, namespace, name) in enumerate(
            (
                ("slurm", "", "7"),
                ("job", "a", "fit"),
                ("job", "b", "fit"),
                ("pod", "a", "7"),
                ("job", "c", "g"),
                ("",) * 3,
            )
        ):
            job = {"workload_job_kind": kind, "workload_namespace": namespace, "workload_job": name}
            load = dice.choice((0.2, 0.4, 0.65, 0.9))
            world.process(f"p{place}", load, hook=dice.random() < 0.7, job=job)
            selected = all(SELECTS[by](({**job, "cluster": "c0"})[label], value) for label, by, value in parts)
            # A matcher of jobs selects no process without one.
            if selected and (name or "workload" not in matchers):
                paid.add((kind, namespace, name))
            if selected and name and load < loads.get(namespace, 0.5):
                expected.add((kind, namespace, name))
        bill = rules.cost_groups(chosen, prices={}, currency="", pue=None, grams=None)["groups"]
        pack = {"groups": [*rules.groups(chosen)["groups"], *bill, {"name": "bill", "rules": [billed]}]}
        found = defaultdict[str, set[tuple[str, ...]]](set)
        for run in runs_of({"c0": world}, {(15, 120): pack}).get("c0", []):
            found[run.alert].add(tuple(run.labels.get(key, "") for key in JOB_LABELS))
        assert found.keys() <= {"TrainingLoadLow", "Billed"}, (seed, matchers, found)
        assert (found["TrainingLoadLow"], found["Billed"]) == (expected, paid), (seed, matchers, loads)


@pytest.mark.everything
def test_many_ranks_do_not_make_a_young_job_old() -> None:
    """The earlier training of the job ended long ago. The sum over the ranks is soon the half of the window."""
    world = World()
    world.exporter()
    world.driver()
    world.process("before", 0.9, 1.0, 1500.0)
    for rank in range(16):
        world.process(f"p{rank}", 0.1, 3600.0)

    runs = judged({"c": world})["c"]
    assert runs["TrainingLoadLow"].begin >= 67, runs


THRESHOLD, SWINGS = 0.5, 240


def swing(dice: random.Random) -> tuple[Callable[[float], float], str]:
    """Return a load that is below the threshold and above it in turns."""
    low, high = THRESHOLD - dice.uniform(0.02, 0.45), THRESHOLD + dice.uniform(0.02, 0.45)
    period, phase, share = 60 * dice.uniform(4, 75), dice.uniform(0, 4500), dice.uniform(0.3, 0.8)
    kind = dice.choice(("sine", "square", "turns"))
    if kind == "sine":
        middle, reach = (low + high) / 2, (high - low) / 2
        sine = f"a sine of {period / 60:.0f} min, {low:.2f} to {high:.2f}"
        return lambda at: middle + reach * math.sin(2 * math.pi * (at + phase) / period), sine
    if kind == "square":
        square = f"a square of {period / 60:.0f} min, {share:.2f} of it at {low:.2f}, else {high:.2f}"
        return lambda at: low if (at + phase) % period < share * period else high, square
    ends = [*itertools.accumulate(dice.uniform(120, 2400) for _ in range(SWINGS))]
    loads = [THRESHOLD + (-1) ** turn * dice.uniform(0.02, 0.45) for turn in range(SWINGS)]
    return lambda at: loads[bisect.bisect(ends, at)], f"turns at {[round(end / 60) for end in ends[:9]]}"


def episodes(load: Callable[[float], float], minutes: int) -> int:
    """Return the number of times at which the mean over 15 minutes may become low, except soon after it was."""
    loads = [load(15.0 * place) for place in range(4 * minutes)]
    means = [statistics.fmean(loads[max(0, 4 * minute - 60) : 4 * minute]) for minute in range(1, minutes)]
    found, last, minute = 0, -math.inf, 0
    for is_low, group in itertools.groupby(means, lambda mean: mean < THRESHOLD):
        begin, minute = minute, minute + len([*group])
        # It must be low for 5 minutes. Whether a few more are noticed is open.
        if is_low and minute - begin >= 4:
            found += begin + 10 - last > 60
            last = minute if minute - begin >= 9 else last
    return found


def test_a_load_that_swings_around_the_threshold_is_one_alert() -> None:
    worlds, truth = {}, {}
    for seed in draws(1, 1000):
        dice = random.Random(seed)
        load, words = swing(dice)
        # Then it is good for good, or the job ends, or neither.
        after, last = dice.choice(("swings", "recovers", "ends")), 60.0 * dice.randint(120, 150)
        world = worlds[f"c{seed}"] = World(minutes=SWINGS, turn=turn_of(seed))
        world.exporter()
        world.driver()
        world.gpu()

        def used(at: float, load: Callable[[float], float] = load, after: str = after, last: float = last) -> float:
            return 0.9 if after == "recovers" and at >= last else load(at)

        end = last if after == "ends" else math.inf
        world.process("p", used, end=end, hook=dice.random() < 0.7)
        most = episodes(used, int(min(end / 60, SWINGS)))
        truth[f"c{seed}"] = after, last / 60, most, f"{words}, {after} at {last / 60:.0f}"
    found = runs_of(worlds)
    for name, (after, last, most, words) in truth.items():
        runs = found.get(name, [])
        assert {run.alert for run in runs} <= {"TrainingLoadLow"}, (words, runs)
        assert len(runs) <= most, (words, most, runs)
        if runs and after != "swings":
            # The windows of the mean and of the swings, and `keep_firing_for`.
            assert runs[-1].end <= last + (15 + 45 + 15 + 5 if after == "recovers" else 15 + 5), (words, runs)


def test_clocks() -> None:
    """A clock is wrong, or is set right or wrong at some time."""
    worlds, truth = {}, {}
    for seed in draws(4, 600):
        dice = random.Random(seed)
        offset = dice.choice((-1, 1)) * dice.choice((0, 5, 50, 200, 720, 3600, 7200, 86400)) * dice.uniform(0.9, 1.1)
        since, until = dice.choice(((0, MINUTES), (0, dice.randint(5, 80)), (dice.randint(5, 80), MINUTES)))

        def clock(at: float, offset: float = offset, begin: int = 60 * since, end: int = 60 * until) -> float:
            return at + offset * (begin <= max(at, 0) < end)

        world = worlds[f"c{seed}"] = World(clock=clock, turn=turn_of(seed))
        world.exporter()
        world.driver()
        world.process("p", 0.2, 60.0)
        truth[f"c{seed}"] = offset, since, until
    found = runs_of(worlds)
    for name, (offset, since, until) in truth.items():
        (low,) = (run for run in found[name] if run.alert == "TrainingLoadLow")
        # Where the clock is set ahead, the training seems older.
        ahead = since > 0 < offset or (until < MINUTES and offset < 0)
        assert ((16, 12)[ahead] <= low.begin <= 30, low.end) == (True, MINUTES - 1), (truth[name], low)
        others = [run for run in found[name] if run is not low]
        assert [run.alert for run in others] in ([], ["ExporterClockSkewed"]), (truth[name], others)
        assert not others or (abs(offset) > 120 and others[0].begin >= since), (truth[name], others)
        assert others or abs(offset) <= 120 or until - since < 30, truth[name]
