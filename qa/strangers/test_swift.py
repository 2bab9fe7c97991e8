"""Drawn programs about which the hook was wrong once, without their sleeps."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests import needs

needs.torch()

# What a model is left in, a mode that is changed before the use, windows with an evaluation in them, lists of batches,
# loaders inside of others and in threads, evaluations that no mode shows, iterators that fail, fetches in no_grad().
SEEDS = (5500035, 5500185, 5600124, 5600171, 5700362, 5800159, 5801184, 6100305, 6100693, 6200305, 6400618, 6500157)


@pytest.mark.torch
def test_no_statement_is_wrong() -> None:
    command = [sys.executable, "-m", "qa.strangers.swift", "--only", *map(str, SEEDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"programs compared {len(SEEDS)}" in done.stdout
