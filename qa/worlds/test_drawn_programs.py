"""What the hook counts and sends of drawn programs is what is recorded of them."""

from __future__ import annotations

import pytest

from qa.worlds.drawn_programs import RECORD

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seed", range(RECORD.seeds))
def test_a_program_is_watched_as_it_is_recorded(seed: int) -> None:
    RECORD.check(seed)


def test_every_program_ran_to_its_end() -> None:
    assert all(count != "-" for count in RECORD.columns()["snap.sequence"])
    assert "the program" not in RECORD.columns()
