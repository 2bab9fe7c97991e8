"""Facts that torch may refuse: a version, an allocator or a subclass that nobody here knew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpugauge.hook.counts.handlers import raised_by_handler

Found = TypeVar("Found")


def attempt(unknown: Found, source: Callable[..., Found], *arguments: object) -> Found:
    """Return what a source of facts returns, or `unknown` if it raises: other sources are still valid."""
    try:
        return source(*arguments)
    except Exception as error:
        if raised_by_handler(error):
            raise  # the program's own error
        return unknown
