"""The rule over the ranks of all nodes names those that verdict.ranks names on one node: drawn jobs."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.e2e.ruletester import promtools

from gpugauge.artifacts.rules import ranks
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import JOB_LABELS, PROCESS_JOB, Selectors
from gpugauge.artifacts.rules.ranks import (
    RANK,
    RANK_BEHIND,
    RANK_EXCUSED,
    RANK_POSITION,
    RANK_SLOW,
    RANK_WORK,
    STALLED,
)
from gpugauge.artifacts.rules.recording import ARMED
from gpugauge.sessions.inquiry import ELSEWHERE, ENDED, SILENT, WAITING
from gpugauge.verdict.ranks import behind, slow
from gpugauge.wire.shares import NAMED_PHASES
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
            f"p{job}-{rank}": (chance.choice([ELSEWHERE, SILENT, ENDED]), "")
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

    _hold(tmp_path, [RANK_BEHIND], series, {"expr": RANK_BEHIND, "eval_time": "2m", "exp_samples": expected})


@pytest.mark.e2e
@seeds(range(3))
def test_the_rule_names_the_slow_ranks_that_the_verdict_names(tmp_path: Path, seed: int) -> None:
    """By whichever of them is slow all the time; a rank that is slow for some minutes of it is not."""
    chance = random.Random(seed)
    series, expected = [], []
    for job in range(60):
        owner = dict(zip(JOB_LABELS, ("slurm", "", str(job)), strict=True))
        usual = chance.uniform(0.1, 1.0)
        works = {
            f"p{job}-{rank}": min(1.0, usual * chance.choice([1.0, 1.0, 1.1, chance.uniform(1.2, 3.0)]))
            for rank in range(chance.randint(2, 9))
        }
        judged, once = chance.random() < 0.9, chance.random() < 0.3
        series.append({"series": f"{ARMED}{_text(owner)}", "values": f"{'1' if judged else '_'}x40"})
        late = slow(works)
        for process, work in works.items():
            labels = {**owner, "process": process, "instance": chance.choice("ab"), "rank": process.partition("-")[2]}
            labels |= {"run_id": "r", "world_size": "9"}
            values = f"{work}x40"
            if once and process in late:
                values = f"{usual}x26 {work}x4 {usual}x8"
            series.append({"series": f"{RANK_WORK}{_text(labels)}", "values": values})
            if process in late and judged and not once:
                text = _text({**labels, "position": "slow"})
                expected.append({"labels": f"{RANK_BEHIND}{text}", "value": round(late[process], 4)})
    assert expected
    query = f"round({RANK_BEHIND}, 0.0001)"
    expected = [{**each, "labels": str(each["labels"]).removeprefix(RANK_BEHIND)} for each in expected]
    test = {"expr": query, "eval_time": "30m", "exp_samples": expected}
    _hold(tmp_path, [RANK_SLOW, RANK_BEHIND], series, test)


@pytest.mark.e2e
@seeds(range(3))
def test_a_rank_that_ended_is_known_while_others_of_its_run_are_stalled(tmp_path: Path, seed: int) -> None:
    """Until an hour after its end, unless the rank was started again."""
    chance = random.Random(seed)
    series, expected = [], []
    for job in range(40):
        owner = dict(zip(JOB_LABELS, ("slurm", "", str(job)), strict=True))
        size, stalls = chance.randint(2, 8), chance.random() < 0.7
        ended = set(chance.sample(range(size), chance.randrange(size)))
        again = {rank for rank in ended if chance.random() < 0.3}
        lives = [(rank, "a", rank not in ended) for rank in range(size)] + [(rank, "b", True) for rank in again]
        for rank, life, lives_on in lives:
            process = {"process": f"{job}-{rank}-{life}"}
            facts = {**process, "rank": str(rank), "world_size": str(size)}
            place = {**process, "instance": chance.choice("ab")}
            minutes = "1x30" if lives_on else f"1x{chance.randint(5, 12)} stale"
            series += [
                {"series": f"torch_process_info{_text(facts)}", "values": minutes},
                {"series": f"{PROCESS_JOB}{_text({**process, **owner})}", "values": "1x30"},
            ]
            position = {**place, "position": "waiting", "function": "all_reduce"}
            if not lives_on:
                position = {**place, "position": "ended"}
                series.append({"series": f"training_end_timestamp_seconds{_text(place)}", "values": "9x12 stale"})
            else:
                series.append({"series": f"training_state{_text({**place, 'state': 'stalled'})}", "values": "1x30"})
            if lives_on and stalls:
                series += [
                    {"series": f"training_rank_position{_text(position)}", "values": "1x30"},
                    {"series": f"{STALLED}{_text(process)}", "values": "1x30"},
                ]
            if stalls and (lives_on or rank not in again):
                expected.append({"labels": f"{RANK_POSITION}{_text({**facts, **position, **owner})}", "value": 1})
    test = {"expr": RANK_POSITION, "eval_time": "28m", "exp_samples": expected}
    _hold(tmp_path, [RANK, RANK_POSITION], series, test)


@pytest.mark.e2e
@seeds(range(3))
def test_a_rank_in_a_phase_excuses_those_of_its_run_on_other_nodes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    series, expected = [], []
    for job in range(40):
        owner = dict(zip(JOB_LABELS, ("slurm", "", str(job)), strict=True))
        for run in range(chance.randint(1, 2)):
            size = chance.choice([1, 3, 5]) + run  # two runs of a job differ in their size
            phase = chance.choice([*sorted(NAMED_PHASES), "", ""])
            for rank in range(size):
                state = phase if phase and not rank else "stalled"
                process = {"process": f"{job}-{run}-{rank}"}
                facts = {**process, "rank": str(rank), "world_size": "" if size == 1 else str(size)}
                place = {**process, "instance": chance.choice("ab")}
                series += [
                    {"series": f"torch_process_info{_text(facts)}", "values": "1x30"},
                    {"series": f"{PROCESS_JOB}{_text({**process, **owner})}", "values": "1x30"},
                    {
                        "series": f"training_state{_text({**place, 'state': 'stalled'})}",
                        "values": "1x30" if state == "stalled" else "0x30",
                    },
                    *(
                        {
                            "series": f"training_seconds_total{_text({**place, 'state': each})}",
                            "values": "7+60x30" if each == state else "7x30",  # phases of long ago
                        }
                        for each in ("stalled", *sorted(NAMED_PHASES))
                    ),
                ]
                if state == "stalled" and not phase:
                    expected.append({"labels": f"{STALLED}{_text(process)}", "value": 1})
    test = {"expr": STALLED, "eval_time": "28m", "exp_samples": expected}
    _hold(tmp_path, [RANK, RANK_EXCUSED, STALLED], series, test)


def _hold(tmp_path: Path, names: list[str], series: list[dict[str, str]], test: Mapping[str, object]) -> None:
    """Fail unless a recorded series is as expected."""
    rules = [r.as_dict() for r in ranks.recordings(Selectors.of(Parameters())) if r.record in names]
    assert len(rules) == len(names)
    (tmp_path / "rules.yaml").write_text(dump({"groups": [{"name": "ranks", "rules": rules}]}))
    tests = {"input_series": series, "interval": "1m", "promql_expr_test": [test]}
    (tmp_path / "test.yaml").write_text(dump({"rule_files": ["rules.yaml"], "tests": [tests]}))
    for tool in promtools():
        done = subprocess.run(
            [tool, "test", "rules", "test.yaml"], check=False, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _text(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items() if value) + "}"
