"""Drawn exporters that are up at times, jobs of short processes, and clocks, judged by the rules in promtool.

The truth is what the story was drawn with: the share of the time in which the exporter is up, the load of the job, and
the offset of the clock.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from tests.drawn import EVERYTHING, draws
from tests.needs import need

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.faults.table import FAULTS
from qa.bench.alerts.replay import Run, replay
from qa.bench.alerts.story import Story, notation

pytestmark = pytest.mark.timeout(3600 if EVERYTHING else 600)

# The groups of the losses have twice the interval, and promtool evaluates all groups at it.
RULES = rules.groups(Parameters(evaluation_interval=30))
SCRAPE, MINUTES = 15, 90
COUNT = MINUTES * 60 // SCRAPE
JOB = {"workload_job_kind": "slurm", "workload_job": "7"}
GPU = {"uuid": "GPU-0"}
_TOGETHER = 25  # stories of a promtool


@dataclass
class World:
    """The series of a node. `up` tells whether a scrape succeeds; with `restarts` the exporter was down before it."""

    up: Callable[[float], bool] = lambda _: True
    restarts: bool = False
    offset: float = 0.0  # of its clock
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]] = field(default_factory=dict)

    def gauge(self, name: str, labels: Mapping[str, str], value: Callable[[float], float | None]) -> None:
        seen = [value(at) if self.up(at := place * SCRAPE) else None for place in range(COUNT)]
        self.series[name, tuple(labels.items())] = seen

    def counter(self, name: str, labels: Mapping[str, str], rate: Callable[[float], float | None]) -> None:
        """`rate` is None while there is no series."""
        total, values = 0.0, list[float | None]()
        for place in range(COUNT):
            now = rate(place * SCRAPE)
            up = self.up(place * SCRAPE)
            lost = now is None or (self.restarts and not up)
            total = 0.0 if lost else total + (now or 0.0) * SCRAPE
            values.append(total if up and now is not None else None)
        self.series[name, tuple(labels.items())] = values

    def exporter(self) -> None:
        self.series["up", (("job", "gpugauge"),)] = [float(self.up(place * SCRAPE)) for place in range(COUNT)]
        self.gauge("gpugauge_snapshot_timestamp_seconds", {}, lambda at: at + self.offset)
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
        load: float,
        begin: float = 0.0,
        end: float = MINUTES * 60.0,
        starting: float = 0.0,
        *,
        hook: bool = True,
    ) -> None:
        """Add a process with a load that trains from `starting` seconds after its begin on."""
        own = {"process": name}

        def alive(at: float) -> bool:
            return begin <= at < end

        self.gauge(
            "gpu_process_host_info", {**own, **JOB, "torch_build": "cuda"}, lambda at: 1.0 if alive(at) else None
        )
        if hook:
            self.gauge("torch_process_info", {**own, **JOB}, lambda at: 1.0 if alive(at) else None)
        trains = "training" if hook else "unknown"
        for state in dict.fromkeys(("training", "unknown", "held_idle", "stalled", "starting")):

            def share(at: float, state: str = state) -> float | None:
                now = trains if at >= begin + starting else "starting"
                return float(state == now) if alive(at) else None

            self.gauge("training_state", {**own, "state": state}, share)
            self.counter("training_seconds_total", {**own, "state": state}, share)
        since = -7200.0 if begin == 0 else begin
        first = "training_start_timestamp_seconds" if hook else "gpu_process_start_timestamp_seconds"
        self.gauge(
            first, own, lambda at: since + starting + self.offset if alive(at) and at >= begin + starting else None
        )
        lost = {**own, "cause": "unknown"}
        self.counter("training_gpu_held_seconds_total", own, lambda at: 1.0 if alive(at) else None)
        self.counter("training_lost_seconds_total", lost, lambda at: 1 - load if alive(at) else None)


def _selector(metric: str, labels: Mapping[str, str]) -> str:
    return metric + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def judged(worlds: Mapping[str, World]) -> dict[str, dict[str, Run]]:
    """Return the first run of each alert by name, of each world."""
    found: defaultdict[str, dict[str, Run]] = defaultdict(dict)
    names = sorted(worlds)
    for first in range(0, len(names), _TOGETHER):
        series = {
            _selector(metric, {**dict(labels), "cluster": name, "instance": "n"}): notation(values)
            for name in names[first : first + _TOGETHER]
            for (metric, labels), values in worlds[name].series.items()
            if any(value is not None for value in values)
        }
        story = Story(name="drawn", description="drawn", interval=SCRAPE, minutes=MINUTES, series=series)
        for run in replay(story, RULES, need("promtool")):
            found[run.labels["cluster"]].setdefault(run.alert, run)
    return found


KINDS = ("none", "low", "low without the hook", "a fault", "blind", "no GPU")
JUDGED = sorted(name for name in FAULTS if name != "GpuReadingFailed")


def cycle(dice: random.Random) -> tuple[Callable[[float], bool], float, str]:
    """Return when an exporter is up, the share of the time, and how in words."""
    if dice.random() < 0.25:
        every = dice.choice((2, 3, 4))
        failing = dice.choice((every - 1, 1))
        return (lambda at: at // SCRAPE % every >= failing), 1 - failing / every, f"{failing} of {every} scrapes fail"
    up, down = dice.choice([(n, 10 - n) for n in range(1, 10)] + [(2, 5), (5, 2), (3, 3), (8, 8), (9, 1)])
    phase = dice.randint(0, 600)
    return (lambda at: (at + phase) % (60 * (up + down)) < 60 * up), up / (up + down), f"{up} min up, {down} min down"


def test_share_of_the_window_decides_not_an_unbroken_stretch() -> None:
    worlds, truth = {}, {}
    for seed in draws(4, 1500):
        dice = random.Random(seed)
        up, share, words = cycle(dice)
        fault = KINDS[seed % len(KINDS)]
        alert = dice.choice(JUDGED) if fault == "a fault" else ""
        world = worlds[f"c{seed}"] = World(up, restarts=dice.random() < 0.5)
        world.exporter()
        world.driver(fault not in {"blind", "no GPU"}, "library_not_found" if fault == "no GPU" else "timeout")
        if fault != "no GPU":
            world.gpu(alert)
        if fault in {"none", "low", "low without the hook"}:
            world.process("p", 0.9 if fault == "none" else 0.2, hook="without" not in fault)
        alert = {"blind": "ExporterBlind"}.get(fault, "TrainingLoadLow" if "low" in fault else alert)
        truth[f"c{seed}"] = share, alert, f"{words}, restarts {world.restarts}, {fault}"
    for name, runs in judged_all(worlds, truth):
        share, expected, words = truth[name]
        assert ("ExporterDown" in runs) or share > 0.5, (words, runs)
        assert ("ExporterDown" not in runs) or share < 0.75, (words, runs)
        assert runs.keys() - {"ExporterDown"} == {expected} - {""}, (words, runs)
        for alert in runs.keys() - {"ExporterDown"}:
            assert runs[alert].begin <= 50, (words, runs)
            assert runs[alert].end == MINUTES - 1, (words, runs)  # it does not resolve and fire again


def judged_all(worlds: Mapping[str, World], names: Iterable[str]) -> Iterator[tuple[str, dict[str, Run]]]:
    found = judged(worlds)
    return ((name, found.get(name, {})) for name in names)


def test_a_job_of_short_processes_is_judged_as_the_job() -> None:
    worlds, truth = {}, {}
    for seed in draws(1, 600):
        dice = random.Random(seed)
        load, hook = dice.choice((0.2, 0.9)), dice.random() < 0.7
        world = worlds[f"c{seed}"] = World()
        world.exporter()
        world.driver()
        world.gpu()
        for slot in range(dice.randint(1, 4)):
            at = float(dice.randint(1, 300))
            while at < MINUTES * 60:
                length = dice.uniform(240, 440)
                starting = dice.uniform(10, 0.2 * length) if hook else 0.0
                world.process(f"p{slot}-{int(at)}", load, at, at + length, starting, hook=hook)
                at += length + dice.uniform(5, 60)
        truth[f"c{seed}"] = load
    for name, runs in judged_all(worlds, truth):
        assert runs.keys() == ({"TrainingLoadLow"} if truth[name] < 0.5 else set()), (name, runs)
        if runs:
            assert (runs["TrainingLoadLow"].begin <= 45, runs["TrainingLoadLow"].end) == (True, MINUTES - 1), (
                name,
                runs,
            )


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


def test_clocks() -> None:
    worlds, truth = {}, {}
    for seed in draws(1, 300):
        dice = random.Random(seed)
        offset = dice.choice((-1, 1)) * dice.choice((0, 5, 50, 200, 720, 3600, 7200, 86400)) * dice.uniform(0.9, 1.1)
        world = worlds[f"c{seed}"] = World(offset=offset)
        world.exporter()
        world.driver()
        world.process("p", 0.2, 60.0)
        truth[f"c{seed}"] = offset
    for name, runs in judged_all(worlds, truth):
        offset = truth[name]
        skewed = {"ExporterClockSkewed"} if abs(offset) > 120 else set()
        assert runs.keys() == {"TrainingLoadLow"} | skewed, (offset, runs)
        assert 16 <= runs["TrainingLoadLow"].begin <= 30, (offset, runs)
