"""Jobs as people call them: a template of an alert, evaluated by promtool, writes the words of the status."""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from grafana.build.jobs import SHOWN, called
from grafana.build.queries import Expr
from tests.drawn import draws, seeds
from tests.needs import need

from gpugauge.artifacts.rules.texts import _job
from gpugauge.cli import stack
from gpugauge.report.jobs import Owner, ReportError, chosen
from gpugauge.report.model import JobId
from gpugauge.status.model import ProcessStatus, Standstill, Status
from gpugauge.status.owner import owner_words
from gpugauge.terminal.reply import Reply
from gpugauge.workload import job as of_jobs
from gpugauge.workload.job import KINDS, WORDS, bounded, job_words
from qa.bench.alerts.replay import dump

JOBS = 60
_HEX = "0123456789abcdef"
_NAMES = ("train.py", "ipykernel_launcher", "my-run", "a", "run@10.0.0.1:29500", "beef", "7201", "x" * 150)


def name_of(dice: random.Random) -> str:
    """Return the name of a job, as one of the sources makes it, or as none does."""
    digits = "".join(dice.choices(_HEX, k=8))
    uid = "-".join("".join(dice.choices(_HEX, k=k)) for k in (8, 4, 4, 4, 12))
    name = dice.choice((*_NAMES, uid, f"{dice.choice(_NAMES)}-{digits}"))
    return bounded("/".join([*dice.choice(((), ("node-5ff6da",), ("1000",), ("node-5ff6da", "1000"))), name]))


@pytest.mark.e2e
@seeds(draws(1, 200))
def test_the_words_of_alerts_are_those_of_the_status(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    jobs = sorted({(dice.choice(KINDS), name_of(dice)) for _ in range(JOBS)})
    rule = {"alert": "A", "expr": "up", "annotations": {"words": _job("$labels")}}
    labels = [{"workload_job_kind": kind, "workload_job": name} for kind, name in jobs]
    series = ["up{" + ",".join(f'{key}="{value}"' for key, value in each.items()) + "}" for each in labels]
    alerts = [
        {"exp_labels": each, "exp_annotations": {"words": job_words(*job)}}
        for each, job in zip(labels, jobs, strict=True)
    ]
    test: dict[str, object] = {
        "interval": "1m",
        "input_series": [{"series": each, "values": "1 1"} for each in series],
        "alert_rule_test": [{"eval_time": "1m", "alertname": "A", "exp_alerts": alerts}],
    }
    on_dashboards = [
        {
            "labels": "up{"
            + ",".join(f'{key}="{value}"' for key, value in {**each, SHOWN: job_words(*job)}.items())
            + "}"
        }
        for each, job in zip(labels, jobs, strict=True)
    ]
    test["promql_expr_test"] = [
        {
            "expr": called(Expr("up", "")).text,
            "eval_time": "1m",
            "exp_samples": [{**each, "value": 1} for each in on_dashboards],
        }
    ]
    (tmp_path / "rules.yaml").write_text(dump({"groups": [{"name": "g", "rules": [rule]}]}))
    (tmp_path / "test.yaml").write_text(dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    command = [need("promtool"), "test", "rules", str(tmp_path / "test.yaml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


@seeds(draws(5, 200))
def test_a_command_accepts_every_name_that_a_view_or_an_alert_prints(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    jobs = sorted({(dice.choice(KINDS), dice.choice(("", "team-a")), name_of(dice)) for _ in range(20)})
    ranks = [
        ProcessStatus(
            process=f"p{number}",
            pid=1000 + number,
            command="train.py",
            rank=number,
            workload={
                **{key: value for key, value in zip(("job_kind", "namespace", "job"), job, strict=True) if value},
                **dict(zip(("kind", "job_id"), dice.choice((("slurm", "7201"), ("pod", "0-1"))), strict=True)),
                **({"pod": f"{job[1]}-0"} if job[1] else {}),
                "user": "ann",
            },
            standstill=Standstill(position="waiting", since=0.0, behind=True),
        )
        for number, job in enumerate(jobs)
    ]
    unknown: dict[str, Any] = dict.fromkeys(each.name for each in fields(Status))
    known = Status(**unknown | {"gpus": (), "without_gpu": tuple(ranks), "ended": (), "timestamp": 60.0})
    monkeypatch.setattr(stack, "fetch", lambda _: Reply(known, {}))
    for job, rank in zip(jobs, ranks, strict=True):
        kind, namespace, _ = job
        words = job_words(kind, job[2])
        before = WORDS.get(kind, (f"{kind} ",))[0]
        of_job = {
            *(words, words.rpartition(" ")[2], JobId(*job).words, JobId(*job).text, job[2]),
            *((f"{before}{namespace}/{words[len(before) :]}",) if namespace else ()),  # as an alert writes it
        }
        assert of_job <= of_jobs.called(*job)
        printed = of_job | {owner_words(rank.workload), *owner_words(rank.workload).split(", ")[:-1]}
        for name in sorted(filter(None, printed)):
            done = CliRunner().invoke(stack.command, [name])
            assert done.exit_code == 0, (name, job, done.output)
            assert f"pid {rank.pid}:" in done.output, (name, job)
            if name == JobId(*job).text:  # the short name of another job may be the same
                assert re.findall(r"pid (\d+):", done.output) == [str(rank.pid)], (name, job)


def test_a_name_in_full_is_of_one_job() -> None:
    jobs = [JobId("slurm", "", "7201"), JobId("slurm", "", "1000/7201")]
    owners = {job.name: Owner(job, "ann", "node", "train.py") for job in jobs}

    assert [chosen(owners, job.text) for job in jobs] == jobs
    with pytest.raises(ReportError, match="2 jobs are called 7201; write one of these in full:\n"):
        chosen(owners, "7201")


def test_names_for_people() -> None:
    names = {
        ("launch", "node-5ff6da/20013/ipykernel_launcher-115995fe"): "ipykernel_launcher",
        ("slurm", "7201"): "Slurm job 7201",
        ("slurm", "1000/7201"): "Slurm job 7201",
        ("declared", "1000/my/run"): "job my/run",
        ("pod", "5b1c0d1e-8a2b-4b5e-9c47-1f2e3d4c5b6a"): "pod uid 5b1c0d1e",
        ("pod", "trainer-0"): "pod trainer-0",
        ("distributed", "1000/run@10.0.0.1:29500"): "distributed job run@10.0.0.1:29500",
        ("container", "node-5ff6da/0f1e2d3c4b5a"): "container 0f1e2d3c4b5a",
        ("jobset", "llm"): "jobset llm",
    }

    assert {job: job_words(*job) for job in names} == names
