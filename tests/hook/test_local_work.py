"""Time without the waits for other ranks where DDP measures only some iterations: a simulation of its logger."""

import gc
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests import needs

if TYPE_CHECKING:
    from gpugauge.hook.peers import LocalWork

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let much time pass between two measurements."""
    needs.torch()
    monkeypatch.setattr("gpugauge.hook.peers.CLOCKS", (itertools.count(0, 1 << 40).__next__,))


def local_work() -> "LocalWork":
    from gpugauge.hook.peers import LocalWork  # noqa: PLC0415 - needs torch

    return LocalWork()


class Logger:
    """DDP's logger and model in one, with a wait of the pattern's seconds in each iteration; see Reducer in torch."""

    device_type = "cuda"

    def __init__(self, local: "LocalWork", wait: Callable[[int], int]) -> None:
        self.process_group = SimpleNamespace(size=lambda: 2)
        self.logger, self.local, self.wait = self, local, wait
        self.iteration, self.rate, self.measurements = 0, 100, 0
        self.ints_map: dict[str, int] = {}
        local.add_model(self)

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> "Logger":
        return self

    def forward(self) -> None:
        if self.iteration and self.iteration % self.rate == 0:
            self.measurements += 1
            waited = self.wait(self.iteration)
            self.ints_map = {
                "backward_comm_time": 5 + waited,
                "backward_compute_comm_overlap_time": 5,
                "backward_comm_time_end": self.iteration,
            }
        self.local.end_iteration(self)
        self.iteration += 1


STEP_NS = 1_000_000


def estimate(wait: Callable[[int], int], steps: int, first: int = 0) -> tuple[float, int]:
    """Return the estimated share of waiting where only one iteration in 100 is measured, and the measurements."""
    local = local_work()
    logger = Logger(local, wait)
    for _ in range(first):
        logger.forward()
    start = local.waited
    for _ in range(steps):
        logger.forward()
    return (local.waited - start) / (steps * STEP_NS), logger.measurements


def test_a_sample_of_the_iterations_has_no_period() -> None:
    # Bursts of 46 steps in one step of 100: sampling by period says all or nothing.
    shares = []
    for phase in range(0, 100, 4):

        def wait(iteration: int, phase: int = phase) -> int:
            return 46 * STEP_NS if iteration % 100 == phase else 0

        share, measurements = estimate(wait, 40_000, first=phase * 37)
        assert measurements == pytest.approx((40_000 + phase * 37) / 100, abs=1)
        shares.append(share)
    # 400 samples, each of which hits a burst with probability 1/100: the standard deviation of the mean is 0.046.
    assert sum(shares) / len(shares) == pytest.approx(0.46, abs=0.14)
    assert max(shares) < 4 * 0.46


def test_a_sample_of_constant_and_of_slowly_changing_waits_is_exact() -> None:
    assert estimate(lambda _: STEP_NS // 2, 10_000)[0] == pytest.approx(0.5, abs=0.01)
    assert estimate(lambda iteration: STEP_NS * iteration // 10_000, 10_000)[0] == pytest.approx(0.5, abs=0.02)
    assert estimate(lambda iteration: STEP_NS * (iteration % 2), 10_000)[0] == pytest.approx(0.5, abs=0.12)


def test_the_time_never_decreases_and_is_unknown_before_the_first_measurement() -> None:
    local = local_work()
    logger = Logger(local, lambda iteration: 30 * STEP_NS if iteration % 50 == 0 else 0)
    before = None
    for step in range(1, 20_001):
        logger.forward()
        local.update(step, step * STEP_NS)
        if not logger.measurements:
            assert local.nanoseconds is None
        assert before is None or (local.nanoseconds is not None and local.nanoseconds >= before)
        before = local.nanoseconds
    assert before is not None
    assert 0 < before < 20_000 * STEP_NS


def test_a_child_starts_from_zero() -> None:
    local = local_work()
    logger = Logger(local, lambda _: STEP_NS // 2)
    for _ in range(1000):
        logger.forward()
    local.update(1000, 1000 * STEP_NS)
    local.clear()
    assert (local.nanoseconds, local.waited) == (None, 0)


def test_a_model_that_is_gone_is_not_measured() -> None:
    local = local_work()
    logger = Logger(local, lambda _: STEP_NS)
    local.end_iteration(logger)
    del logger
    gc.collect()
    local.update(5, 5 * STEP_NS)
    assert local.nanoseconds is None


def test_a_wait_is_not_longer_than_the_time_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    # DDP uses the clock of the system, which can be set.
    monkeypatch.setattr("gpugauge.hook.peers.CLOCKS", (itertools.count(0, STEP_NS).__next__,))
    share, _ = estimate(lambda _: 1 << 60, 10_000)
    assert share == pytest.approx(1.0, abs=0.02)
