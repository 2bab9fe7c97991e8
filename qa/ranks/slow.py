"""Runs drawn jobs of which a rank is slow, and compares the rank that the rules name with the planted one.

What the real ranks report is replayed by promtool to the shipped rules, each second as SPEED seconds. `python -m
qa.ranks.slow FIRST COUNT` prints the table for so many seeds.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.ruletester import promtools

from gpugauge.artifacts.rules import pack
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.ranks import SLOW
from gpugauge.collectors.base import Tick
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import DriverView
from gpugauge.node import training
from gpugauge.node.node import Node
from qa.bench.alerts.replay import dump
from qa.ranks.score import KINDS, Ranks, quick

SPEED, SCRAPE = 30, 15.0
SCRAPES = 144  # 36 minutes from the first steps to the question; the fault begins in the first ones
_WORK = "torch_local_work_seconds_total"
SLOW_FAULTS = ("computes", "reads")
FAULTS = (*SLOW_FAULTS, *SLOW_FAULTS, "once", "uneven", "none")


def draw(seed: int) -> dict[str, Any]:
    """Return a case."""
    chance = random.Random(seed)
    size, fault = chance.choice((2, 3, 4, 4, 6, 8)), chance.choice(FAULTS)
    # Seconds in each step, whose other work takes 0.1 s and more; or once, which stand for 1 to 3 minutes.
    extra = {"once": chance.uniform(2.0, 6.0), "uneven": chance.uniform(0.0, 0.01)}
    return {
        "kind": chance.choice(KINDS),
        "size": size,
        "fault": fault,
        "rank": chance.randrange(size),
        "step": chance.randrange(10, 30),
        "base": 0.1,
        "extra": round(extra.get(fault, chance.uniform(0.07, 0.2)), 3),
        "phase": chance.random() < 0.5,
        "block": "sleep",
        "handles": chance.random() < 0.5,
    }


class Recorder:
    """The series of the ranks of a job, as a Prometheus would scrape them, by name, process and state."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
        self._judge, self._off = VerdictCollector(), DriverView(up=False, reason="off")

    def scrape(self, node: Node, number: int) -> None:
        """Add the values of a node; before the first scrape, `number` is below 0."""
        section = self._judge.collect(Tick(node.timestamp, node.monotonic, self._off, node=node))
        if number < 0:
            return
        for family in section.families:
            name = family.metric.name
            if name in {"training_state", "training_seconds_total"}:
                for (process, state), value in family.samples:
                    assert isinstance(value, (float, int))
                    # The ranks have no GPU: what they do would be a training on one.
                    values = self.series[name, process, state.replace("_on_cpu", "")]
                    values[number] = values.get(number, 0.0) + value * (SPEED if name.endswith("_total") else 1)
        for process, session in node.sessions.items():
            work = training.local_work(session)
            if work is not None:
                self.series[_WORK, process, ""][number] = work * SPEED

    def works(self) -> dict[str, float]:
        """Return the share of its time that each rank works."""
        return {
            process: round((values[max(values)] - values[min(values)]) / (len(values) * SCRAPE), 2)
            for (name, process, _), values in self.series.items()
            if name == _WORK
        }


def run(ranks: Ranks, case: Mapping[str, Any], name: str) -> Recorder:
    """Return what the ranks of a case have reported."""
    recorder, pause = Recorder(), SCRAPE / SPEED
    with ranks.job(case, name) as pids:
        last = time.monotonic() + 240.0
        while sum((training.steps(session) or 0) > 3 for session in ranks.node(pids).sessions.values()) < len(pids):
            assert time.monotonic() < last, "the ranks do not begin"
            recorder.scrape(ranks.node(pids), -1)
            time.sleep(0.2)
        begin = time.monotonic()
        for number in range(SCRAPES):
            recorder.scrape(ranks.node(pids), number)
            time.sleep(max(0.0, begin + (number + 1) * pause - time.monotonic()))
    return recorder


def named(series: Mapping[tuple[str, str, str], Mapping[int, float]], size: int) -> set[int]:
    """Return the ranks that the rules name at the end of the series: where the alert about their job fires."""
    job = 'workload_job_kind="slurm",workload_job="1"'
    given: list[tuple[str, Sequence[float | None]]] = [
        (f'training_start_timestamp_seconds{{process="{rank}"', [-7200.0] * SCRAPES) for rank in range(size)
    ]
    given += [
        (f'torch_process_info{{process="{rank}",rank="{rank}",world_size="{size}",{job}', [1.0] * SCRAPES)
        for rank in range(size)
    ]
    given += [("gpugauge_snapshot_timestamp_seconds{", [i * SCRAPE for i in range(SCRAPES)])]
    given += [
        (f'{name}{{process="{process}"' + (f',state="{state}"' if state else ""), [at.get(i) for i in range(SCRAPES)])
        for (name, process, state), at in series.items()
    ]
    rows = [
        {
            "series": f'{head}{"" if head.endswith("{") else ","}instance="n",cluster="c"}}',
            "values": " ".join("_" if value is None else f"{value:.6g}" for value in values),
        }
        for head, values in given
    ]
    fires = 'ALERTS{alertname="TrainingRankBehind",alertstate="firing"}'
    query = {"expr": f"{SLOW} and on (workload_job) {fires}", "eval_time": f"{int((SCRAPES - 1) * SCRAPE)}s"}
    groups = pack.groups(Parameters())
    tests = {
        "rule_files": ["rules.yaml"],
        "group_eval_order": [group["name"] for group in groups["groups"]],
        "tests": [{"interval": f"{SCRAPE:g}s", "input_series": rows, "promql_expr_test": [query]}],
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.yaml").write_text(dump(groups))
        (Path(folder) / "test.yaml").write_text(dump(tests))
        command = [promtools()[0], "test", "rules", "test.yaml"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    # It expects no series, and so prints those that it has found.
    found = {int(rank) for rank in re.findall(r'rank="(\d+)"', done.stdout + done.stderr)}
    assert found or not done.returncode, done.stdout + done.stderr
    return found


def verdict(case: Mapping[str, Any], found: set[int]) -> str:
    """Return right, wrong or missed."""
    expected = {case["rank"]} if case["fault"] in SLOW_FAULTS else set()
    return "right" if found == expected else "wrong" if found else "missed"


def main(first: int, count: int) -> None:
    """Print each case, and the table."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    with quick(), tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(Path(folder))
        for seed in range(first, first + count):
            case = draw(seed)
            recorder = run(ranks, case, str(seed))
            found = named(recorder.series, case["size"])
            said = verdict(case, found)
            table[case["fault"]][said] += 1
            print(seed, said, case, found, recorder.works(), flush=True)
        ranks.close()
    for fault, counts in sorted(table.items()):
        print(
            f"| {fault} | {sum(counts.values())} | " + " | ".join(str(counts[k]) for k in ("right", "wrong", "missed"))
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
