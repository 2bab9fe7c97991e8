"""The rule over the ranks of all nodes names those that verdict.ranks names on one node: drawn jobs."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.e2e.ruletester import promtools

from gpugauge.artifacts.rules import recording
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import JOB_LABELS, Selectors
from gpugauge.artifacts.rules.recording import RANK_BEHIND, RANK_POSITION
from gpugauge.sessions.inquiry import ELSEWHERE, SILENT, WAITING
from gpugauge.verdict.ranks import behind
from qa.bench.alerts.replay import dump

FUNCTIONS = ("all_reduce", "barrier", "send", "recv", "wait", "")


@pytest.mark.e2e
@seeds(range(3))
def test_the_rule_names_the_ranks_that_the_verdict_names(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    series, expected = [], []
    for job in range(60):
        likely = chance.choice([0.0, 0.1, 0.5])  # that a rank does not wait
        few = chance.choices(FUNCTIONS, k=chance.choice([1, 2, 3]))
        positions = {
            f"p{job}-{rank}": (chance.choice([ELSEWHERE, SILENT]), "")
            if chance.random() < likely
            else (WAITING, chance.choice([few[0], chance.choice(few)]))
            for rank in range(chance.randint(2, 9))
        }
        labels = {
            process: {
                **dict(zip(JOB_LABELS, ("slurm", "", str(job)), strict=True)),
                "process": process,
                "instance": chance.choice("ab"),
                "rank": process.partition("-")[2],
                "position": position,
                "function": function,
            }
            for process, (position, function) in positions.items()
        }
        series += [{"series": f"{RANK_POSITION}{_text(each)}", "values": "1x4"} for each in labels.values()]
        expected += [{"labels": f"{RANK_BEHIND}{_text(labels[late])}", "value": 1} for late in behind(positions)]
    assert expected
    assert len(expected) < len(series) / 2

    (rule,) = (r for r in recording.of_processes(Selectors.of(Parameters())) if r.record == RANK_BEHIND)
    test = {"expr": RANK_BEHIND, "eval_time": "2m", "exp_samples": expected}
    (tmp_path / "rules.yaml").write_text(dump({"groups": [{"name": "ranks", "rules": [rule.as_dict()]}]}))
    tests = {"input_series": series, "interval": "1m", "promql_expr_test": [test]}
    (tmp_path / "test.yaml").write_text(dump({"rule_files": ["rules.yaml"], "tests": [tests]}))
    for tool in promtools():
        done = subprocess.run(
            [tool, "test", "rules", "test.yaml"], check=False, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _text(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items() if value) + "}"
