from collections.abc import Iterator

import pytest

from gpugauge.driver import nvml


@pytest.fixture(autouse=True)
def _real_library_afterwards() -> Iterator[None]:
    yield
    nvml.use_library(None)
