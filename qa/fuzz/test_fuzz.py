"""Some of the inputs of `python -m qa.bench.fuzz`, drawn from a fixed seed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from qa.fuzz.target import Target
from qa.fuzz.targets import TARGETS

INPUTS = 300


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_other_exceptions_than_refusals(target: Target, tmp_path: Path) -> None:
    random = Random(target.name)
    with ExitStack() as stack:
        attempt = target.prepare(tmp_path, stack)
        accepted = sum(target.accepts(attempt, target.generate(random)) for _ in range(INPUTS))
        seeds = [seed for seed in target.seeds if target.accepts(attempt, seed)]

    assert seeds, "no seed is valid: the code behind the parser is not reached"
    assert accepted, "no input is valid"


def test_other_exceptions_are_raised(tmp_path: Path) -> None:
    def attempt(data: bytes) -> None:
        if b"\0" in data:
            raise KeyError(data)

    target = Target("broken", lambda _folder, _stack: attempt, (ValueError,), (b"abc",), (b"\0",))
    random = Random(1)

    with pytest.raises(KeyError):
        [target.accepts(attempt, target.generate(random)) for _ in range(100)]
