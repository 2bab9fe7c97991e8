"""Shared by all tests."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import settings

# Examples are limited by number, not by time: a slow machine must not fail a test.
settings.register_profile("gpugauge", deadline=None)
settings.load_profile("gpugauge")

HAS_TORCH = importlib.util.find_spec("torch") is not None and os.environ.get("TORCH") != "none"
NO_TORCH = "the real torch is not installed"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need the real torch where there is none; in CI that is an error."""
    needing = [item for item in items if item.get_closest_marker("torch")]
    if HAS_TORCH or not needing:
        return
    if os.environ.get("CI"):
        raise pytest.UsageError(f"{NO_TORCH}: in CI no test may be left out")
    for item in needing:
        item.add_marker(pytest.mark.skip(reason=NO_TORCH))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how many tests were left out for want of torch."""
    left_out = sum(NO_TORCH in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if left_out:
        terminalreporter.write_line(f"WARNING: {left_out} tests were left out: {NO_TORCH}", yellow=True)
