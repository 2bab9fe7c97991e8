from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpugauge.driver.nvidia import nvml
from gpugauge.driver.supervisor import DriverSource
from tests.driver.fakeworker import PACE, Node


@pytest.fixture(autouse=True)
def _real_library_afterwards() -> Iterator[None]:
    yield
    nvml.use_library(None)


@pytest.fixture
def run() -> Iterator[Callable[..., DriverSource]]:
    """Start sources over nodes; they are stopped at the end."""
    sources: list[DriverSource] = []

    def start(node: Node, **arguments: Any) -> DriverSource:
        sources.append(DriverSource(PACE, worker=node.spawn, **arguments))
        sources[-1].start()
        return sources[-1]

    yield start
    for source in sources:
        source.stop()
