"""Real ranks over gloo: the planted rank is named, with its line, and no rank of a healthy job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawn import EVERYTHING

from qa.ranks.score import Ranks, draw, quick, run, verdict

pytestmark = [pytest.mark.torch, pytest.mark.everything]


@pytest.mark.timeout(3600)
def test_the_planted_rank_is_named_with_its_line(tmp_path: Path) -> None:
    wrong = []
    with quick():
        ranks = Ranks(tmp_path)
        try:
            for seed in range(20 if EVERYTHING else 2):
                case = draw(seed)
                named, seen, positions = run(ranks, case, str(seed))
                if (said := verdict(case, named, seen)) != "right":
                    wrong.append((seed, said, case, named, seen, positions))
        finally:
            ranks.close()
    assert wrong == []
