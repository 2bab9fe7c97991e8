"""What is read of drawn machines is what is recorded of them."""

from __future__ import annotations

import pytest

from qa.worlds.drawn_machines import RECORD


@pytest.mark.parametrize("seed", range(RECORD.seeds))
def test_a_machine_is_read_as_it_is_recorded(seed: int) -> None:
    RECORD.check(seed)
