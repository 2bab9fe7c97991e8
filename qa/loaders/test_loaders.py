"""Drawn loaders run again with the recommended number of workers, which removes their waits (`make loaders`: ten)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import need_module

ROOT = Path(__file__).parents[2]
# They sleep, in items and in the collate function: hardly anything else on the machine disturbs them.
SEEDS = ("20", "28")


@pytest.mark.e2e
@pytest.mark.everything
@pytest.mark.timeout(400)
def test_the_recommended_workers_remove_the_waits() -> None:
    need_module("torch")
    command = [sys.executable, "-m", "qa.loaders", "--only", *SEEDS]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
