from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpugauge.driver.nvidia import nvml
from gpugauge.driver.reader import ReadingIntervals
from gpugauge.driver.supervisor import Supervisor
from tests.driver.fakeworker import INTERVALS, Node


@pytest.fixture(autouse=True)
def _real_library_afterwards() -> Iterator[None]:
    yield
    nvml.use_library(None)


@pytest.fixture
def run() -> Iterator[Callable[..., Supervisor]]:
    """Start supervisors over nodes; they are stopped at the end."""
    supervisors: list[Supervisor] = []

    def start(node: Node, intervals: ReadingIntervals = INTERVALS, **arguments: Any) -> Supervisor:
        supervisors.append(Supervisor(intervals, worker=node.spawn, **arguments))
        supervisors[-1].start()
        return supervisors[-1]

    yield start
    for supervisor in supervisors:
        supervisor.stop()
