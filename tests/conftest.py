"""Shared by all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.needs import NO_TORCH, leave_out_torch

# Examples are limited by number, not by time: a slow machine must not fail a test.
settings.register_profile("gpugauge", deadline=None)
settings.load_profile("gpugauge")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_out_torch(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests were left out for want of torch."""
    left_out = sum(NO_TORCH in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if left_out:
        terminalreporter.write_line(f"WARNING: {left_out} tests were left out: {NO_TORCH}", yellow=True)
