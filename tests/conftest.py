"""Shared by all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.needs import NO_TORCH, leave_out_torch

# Examples are limited by number, not by time: a slow machine must not fail a test.
settings.register_profile("gpugauge", deadline=None)
settings.load_profile("gpugauge")

# readline, which pytest imports, exports 80 columns and 24 lines: commands would take them for those of their terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
    os.unsetenv(name)


# The files of the tests that take longest begin first, so that no worker is left with one of them at the end.
LONG = (
    *(
        "test_threads",
        "test_health_chain",
        "test_rules",
        "test_chain",
        "test_planted",
        "test_drawn",
        "test_lifecycle",
        "test_page",
    ),
    *("test_hostile", "test_frameworks", "test_main_job", "test_fault_histories", "test_chart", "test_rule_texts"),
    *("test_training", "test_simulated", "test_oracle", "test_inside", "test_golden", "test_idioms", "test_flops"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_out_torch(items)
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests were left out for want of torch."""
    left_out = sum(NO_TORCH in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if left_out:
        terminalreporter.write_line(f"WARNING: {left_out} tests were left out: {NO_TORCH}", yellow=True)
