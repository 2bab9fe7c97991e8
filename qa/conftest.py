"""Which tests of qa/ run in a push: those of the drawn worlds."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of the other tools to `make everything`."""
    for item in items:
        if _FOLDER in item.path.parents and _FOLDER / "worlds" not in item.path.parents:
            item.add_marker("everything")
