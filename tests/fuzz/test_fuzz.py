"""A few of the inputs that `python -m bench.fuzz` tries in their hundred thousands: always the same ones."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

INPUTS = 300


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_but_refusals(target: Target, tmp_path: Path) -> None:
    random = Random(target.name)
    with ExitStack() as stack:
        attempt = target.prepare(tmp_path, stack)
        accepted = sum(target.accepts(attempt, target.generate(random)) for _ in range(INPUTS))
        seeds = [seed for seed in target.seeds if target.accepts(attempt, seed)]

    assert seeds, "no seed is right: nothing behind the parser is reached"
    assert accepted, "no input is nearly right"


def test_an_error_that_is_no_refusal_shows(tmp_path: Path) -> None:
    def attempt(data: bytes) -> None:
        if b"\0" in data:
            raise KeyError(data)

    target = Target("broken", lambda _folder, _stack: attempt, (ValueError,), (b"abc",), (b"\0",))
    random = Random(1)

    with pytest.raises(KeyError):
        [target.accepts(attempt, target.generate(random)) for _ in range(100)]
