"""Shared by the end-to-end tests."""

from __future__ import annotations

import pytest

from tests.e2e.daily import seed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the seed with which the drawn cases are repeated."""
    terminalreporter.write_line(f"seed of the day: {seed()}; GPUGAUGE_SEED={seed()} repeats its drawn cases")
