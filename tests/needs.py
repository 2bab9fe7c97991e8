"""What a test needs of the machine: without it the test is skipped on a user's machine, and fails in CI.

There is no other way to skip a test (tests/test_needs.py), so that CI notices each test that was left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from types import ModuleType
from typing import NoReturn

import pytest

Skipped = pytest.skip.Exception
NO_TORCH = "the real torch is not installed"


def give_up(reason: str) -> NoReturn:
    """Skip the test on a user's machine, fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}: in CI no test may be left out")
    pytest.skip(reason, allow_module_level=True)


def need(program: str) -> str:
    """Return the program's path, or give up."""
    path = shutil.which(program)
    if path is None:
        give_up(f"{program} is not installed (make e2e-packages lists what is needed)")
    return path


def require(met: bool, reason: str) -> None:
    """Give up unless a condition of the test is met."""
    if not met:
        give_up(reason)


def has_torch() -> bool:
    """Return whether the tests with the real torch run."""
    return importlib.util.find_spec("torch") is not None and os.environ.get("TORCH") != "none"


def torch() -> ModuleType:
    """Return the real torch."""
    require(has_torch(), NO_TORCH)
    return importlib.import_module("torch")


def leave_out_torch(items: list[pytest.Item]) -> None:
    """Skip the collected tests with the mark `torch` if there is none. Raises UsageError in CI."""
    needing = [item for item in items if item.get_closest_marker("torch")]
    if has_torch() or not needing:
        return
    if os.environ.get("CI"):
        raise pytest.UsageError(f"{NO_TORCH}: in CI no test may be left out")
    for item in needing:
        item.add_marker(pytest.mark.skip(reason=NO_TORCH))


def helm() -> ModuleType:
    """Return Helm's own code as a module, or give up."""
    require(importlib.util.find_spec("helm_python") is not None, "helm-python-sdk is not installed (make e2e does it)")
    return importlib.import_module("helm_python")


def need_module(name: str) -> None:
    """Skip on a user's machine without the framework, fail in CI."""
    if importlib.util.find_spec(name) is None:
        give_up(f"{name} is not installed: pip install '.[frameworks]'")
