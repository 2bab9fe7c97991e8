"""Some seconds of `make hostile`, and what its witness notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from qa.hostile.witness import SETTINGS, Witness, settings
from qa.torture.subject import Setting, Subject, subject, switch

from tests.e2e.programs import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
SECONDS = 15
# Of a daemon with users, and of one without (qa/hostile/run.py, has_users).
SEEDS = {True: 7, False: 5}


def hostile(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qa.hostile", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("users", SEEDS)
def test_all_works_after_each_attack(users: bool, capsys: pytest.CaptureFixture[str]) -> None:
    done = hostile(f"--seconds={SECONDS}", f"--seed={SEEDS[users]}")

    with capsys.disabled():
        print("\n" + done.stdout.strip())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"seed {SEEDS[users]}: a daemon {'with' if users else 'without'} users" in done.stdout


def test_a_wrong_attack_is_refused() -> None:
    done = hostile("--attack=hook open:1")

    assert done.returncode == 2
    assert "--attack: 'open:1' is no act of hook: expected ACT:SEED with one of connect, " in done.stderr


@contextmanager
def watched(setting: Setting) -> Iterator[tuple[Subject, Witness]]:
    with subject(setting) as run:
        witness = Witness(run, users=False)
        wait_for(witness.ready, 30, "the daemon serves")
        yield run, witness
        witness.close()


def setting(*flags: str, **more: object) -> Setting:
    files = {SETTINGS: settings(enabled=True)}
    return Setting(flags=["--config.file={}/" + SETTINGS, *flags], files=files, real=True, **more)  # type: ignore[arg-type]  # fields by name


def test_the_witness_notices_what_does_not_work() -> None:
    with watched(setting("--web.enable-lifecycle")) as (run, witness):
        assert witness.check() == ""

        path, witness.honest._path = witness.honest._path, run.folder / "elsewhere.sock"
        witness.honest.close()
        assert "the honest training's step" in witness.check()
        witness.honest._path = path

        os.kill(run.pid, signal.SIGSTOP)
        assert witness.check().startswith("the scrape over a kept connection failed after")
        os.kill(run.pid, signal.SIGCONT)
        wait_for(lambda: witness.check() == "", 30, "it works again")

        witness._judge.gauges["GPU-0"]['gpu_power_watts{uuid="GPU-0"}'] += 1
        assert "gpu_power_watts" in witness.check()


def test_the_witness_notices_reloads_without_effect() -> None:
    with watched(setting()) as (_, witness):
        assert witness.check().startswith("/-/reload: status 403: the lifecycle endpoints are disabled")
    with watched(Setting(real=True, flags=["--web.enable-lifecycle"])) as (_, witness):
        assert witness.check() == "SIGHUP: the new settings do not take effect within 10 s"


def test_the_witness_notices_a_gpu_that_is_missing() -> None:
    lost = {"call": "*", "gpu": 1, "code": "gpu_is_lost", "while_exists": "{}/fault"}
    with watched(setting("--web.enable-lifecycle", faults=[lost])) as (run, witness):
        assert witness.check() == ""
        switch(run.folder).touch()
        wait_for(lambda: "lacks values of GPUs" in witness.check(), 30, "the loss is noticed")
