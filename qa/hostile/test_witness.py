"""What the witness of `make hostile` notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.programs import wait_for

from qa.hostile.witness import SETTINGS, Witness, settings
from qa.torture.subject import Setting, Subject, subject, switch

pytestmark = [pytest.mark.e2e, pytest.mark.everything]

ROOT = Path(__file__).parents[2]


def test_a_wrong_attack_is_refused() -> None:
    command = [sys.executable, "-m", "qa.hostile", "--attack=hook open:1"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

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
