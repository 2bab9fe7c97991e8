"""Drawn programs, attacks and faults at a real daemon, by the seed of the day; `make everything` draws more."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from qa.hostile.run import has_users
from qa.torture.__main__ import FAULTS

from tests.e2e.daily import EVERYTHING, seed, share
from tests.e2e.documents import ROOT
from tests.needs import need_module

pytestmark = pytest.mark.e2e


def run(module: str, *arguments: str) -> str:
    """Run a program of qa/, and return its output. Fails if it does."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.mark.timeout(600)
def test_no_statement_about_drawn_programs_is_wrong() -> None:
    for module in ("transformers", "lightning", "accelerate"):
        need_module(module)
    number = share(30)

    assert f"\n{number} programs in " in run("qa.strangers", f"--programs={number}", f"--seed={100 * seed()}")
    assert "programs compared" in run("qa.strangers.swift", "--programs=45", f"--seed={1000 * seed()}")


def test_the_planted_rank_of_a_job_is_named_with_its_line() -> None:
    """The first of the jobs of docs/proof/hangs.md, in which none is missed. They mostly wait."""
    with ThreadPoolExecutor() as beside:
        found = [*beside.map(lambda first: run("qa.ranks.score", str(first), "5"), range(7000, 7020, 5))]
    jobs = [line for text in found for line in text.splitlines() if line[0] != "|"]

    assert [job for job in jobs if job.split()[1] != "right"] == []
    assert len(jobs) == 20


def test_all_works_after_each_attack() -> None:
    seconds, users = share(30), has_users(seed())

    assert f"a daemon with{'' if users else 'out'} users" in run(
        "qa.hostile", f"--seconds={seconds}", f"--seed={seed()}"
    )


def test_faults_lose_no_scrape_and_show_no_wrong_value() -> None:
    quick = [fault.name for fault in FAULTS if fault.quick]
    names = quick if EVERYTHING else random.Random(seed()).sample(quick, 2)
    lines = run("qa.torture", "--quick", *names).splitlines()

    assert len(lines) >= len(names)
    assert {line.split()[0] for line in lines} == {"ok"}
