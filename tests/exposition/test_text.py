"""Lines of families that change: cached and newly rendered lines give the same text."""

from __future__ import annotations

import math
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from gpugauge.exposition import text as exposition_text
from gpugauge.exposition.text import Lines
from gpugauge.metric import NONE, Family, Table

ROW = Table("process").gauge("gpu_figure", "A figure.", NONE, id)
labels = st.sampled_from(["p", "q", "two\nlines", "\x85\u2028", '"'])
numbers = st.sampled_from([0, 1, 1.0, 0.5, 1e7, math.inf, math.nan])


@given(st.lists(st.dictionaries(labels, numbers), max_size=6))
def test_lines_are_the_same_as_without_a_cache(ticks: list[dict[str, float]]) -> None:
    lines = Lines()
    for tick in ticks:
        family = Family(ROW, tuple(((label,), value) for label, value in tick.items()))

        assert lines.of(family) == Lines().of(family)


def test_only_changed_samples_of_a_family_are_rendered_again() -> None:
    def family(changed: float) -> Family:
        return Family(ROW, tuple(((str(i),), changed if i == 7 else 1e7) for i in range(100)))

    lines = Lines()
    lines.of(family(2e7))
    with patch.object(exposition_text, "_number", wraps=exposition_text._number) as number:
        lines.of(family(3e7))

    assert [call.args for call in number.call_args_list] == [(3e7,)]
