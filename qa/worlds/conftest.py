"""Shared by the drawn worlds."""

import tests.conftest  # noqa: F401  (the profile of hypothesis: examples are limited by number, not by time)
