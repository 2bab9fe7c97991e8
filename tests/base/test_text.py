"""Lists of CPUs, as the kernel writes them."""

from __future__ import annotations

from gpugauge.base.text import cpu_set


def test_lists_of_cpus() -> None:
    lists: dict[str, set[int]] = {"0-3,8": {0, 1, 2, 3, 8}, "5": {5}, "0-": {0}}
    lists |= {text: set() for text in ("", "a-b", "3-1", "1,,2")}

    assert {text: cpu_set(text) for text in lists} == lists
