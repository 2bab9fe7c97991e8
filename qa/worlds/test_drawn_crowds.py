"""What the receiver of the hook's socket does among drawn crowds is what is recorded."""

from __future__ import annotations

import pytest

from qa.worlds.drawn_crowds import KINDS, RECORD


@pytest.mark.parametrize("seed", range(RECORD.seeds))
def test_a_crowd_is_served_as_it_is_recorded(seed: int) -> None:
    RECORD.check(seed)


def test_each_kind_of_datagram_is_recorded() -> None:
    assert set(KINDS.values()) <= RECORD.columns().keys()
